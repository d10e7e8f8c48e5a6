// Models: which serves which role, what it costs, whether it answers; and the files of those that run here.

import { useState } from "preact/hooks";
import { get, me, send } from "../api/client";
import type { LocalModel, ModelFacts, ModelRole, ModelTrial } from "../api/records";
import { Icon } from "../parts/icons";
import { useLoad } from "../parts/load";
import { Failed } from "../parts/notes";
import { bytes, count, dollars, duration, oneLine, shown } from "../text/format";

export function Models() {
  const { data, error, again } = useLoad("models", () => get<LocalModel[]>("/v1/models"));
  const [busy, setBusy] = useState("");
  const [failure, setFailure] = useState<unknown>(null);
  const fetchIt = (name: string) => {
    setBusy(name);
    send("POST", "/v1/models/fetch", { name })
      .then(again, setFailure)
      .finally(() => setBusy(""));
  };
  return (
    <div class="page">
      <h1>Models</h1>
      <Roles />
      <h2>On this machine</h2>
      {(failure !== null || error !== null) && <Failed error={failure ?? error} again={again} />}
      <div class="scroll" tabIndex={0} role="region" aria-label="Models">
        <table class="table">
          <thead>
            <tr>
              <th scope="col">model</th>
              <th scope="col">licence</th>
              <th scope="col" class="right">size</th>
              <th scope="col">here</th>
            </tr>
          </thead>
          <tbody>
            {data?.map((model) => (
              <tr key={model.name}>
                <td>
                  {shown(model.title)} <code>{shown(model.name)}</code>
                </td>
                <td>{shown(model.license)}</td>
                <td class="right">{bytes(model.bytes)}</td>
                <td>
                  {model.here ? (
                    <span class="good">
                      <Icon name="check" /> here
                    </span>
                  ) : me.value?.role === "admin" ? (
                    <button disabled={busy !== ""} onClick={() => fetchIt(model.name)}>
                      {busy === model.name ? "Fetching…" : "Fetch"}
                    </button>
                  ) : (
                    "no"
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

/** The roles of the settings, each model with its price and a trial. */
function Roles() {
  const { data, error, again } = useLoad("roles", () => get<ModelRole[]>("/v1/models/roles"));
  // What is wrong with all of them is said once.
  const problem = data?.[0]?.problem;
  const same = problem && data.every((role) => !role.models.length && role.problem === problem) ? problem : "";
  return (
    <section aria-label="Roles">
      <p class="dim">The settings name the models; where a role names several, each is the fallback of the one before it. Prices are US dollars per million tokens.</p>
      {error !== null && <Failed error={error} again={again} />}
      {same && <p class="bad">{shown(same)}</p>}
      <div class="scroll" tabIndex={0} role="region" aria-label="Models by role">
        <table class="table">
          <thead>
            <tr>
              <th scope="col">role</th>
              <th scope="col">model</th>
              <th scope="col" class="right">in</th>
              <th scope="col" class="right">out</th>
              <th scope="col" class="right">window</th>
              <th scope="col">pictures</th>
              <th scope="col">trial</th>
            </tr>
          </thead>
          <tbody>
            {data?.map((role) =>
              role.models.length ? (
                role.models.map((model, index) => <RoleLine key={`${role.role} ${model.name}`} role={index ? "" : role.role} model={model} />)
              ) : (
                <tr key={role.role}>
                  <th scope="row">{role.role}</th>
                  <td colSpan={6} class={same ? "dim" : "bad"}>
                    {same ? "none" : shown(role.problem)}
                  </td>
                </tr>
              ),
            )}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function RoleLine({ role, model }: { role: string; model: ModelFacts }) {
  const [trial, setTrial] = useState<ModelTrial | "busy" | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const tryIt = () => {
    setTrial("busy");
    setFailure(null);
    send<ModelTrial>("POST", "/v1/models/try", { name: model.name }).then(setTrial, (error: unknown) => (setFailure(error), setTrial(null)));
  };
  const price = (value: number | null) => (value === null ? "unknown" : dollars(value));
  return (
    <tr>
      <th scope="row">{role}</th>
      <td>
        <code>{shown(model.name)}</code>
        {model.problem && <p class="bad">{shown(model.problem)}</p>}
      </td>
      <td class="right">{price(model.input_price)}</td>
      <td class="right">{price(model.output_price)}</td>
      <td class="right">{model.window === null ? "" : count(model.window)}</td>
      <td>{model.sees ? "yes" : "no"}</td>
      <td>
        {me.value?.role === "admin" && !model.problem && (
          <button aria-label={`Try ${model.name} as ${role || "fallback"}`} disabled={trial === "busy"} onClick={tryIt}>
            {trial === "busy" ? "Asking…" : "Try"}
          </button>
        )}{" "}
        <span role="status">
          {trial && trial !== "busy" && (
            <span class={trial.ok ? "good" : "bad"}>
              {trial.ok ? "answers" : oneLine(trial.text, 200)} in {duration(trial.seconds)}
              {trial.cost !== null && trial.cost > 0 && `, ${dollars(trial.cost)}`}
            </span>
          )}
          {failure !== null && <Failed error={failure} />}
        </span>
      </td>
    </tr>
  );
}
