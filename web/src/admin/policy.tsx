// The rules in force, and the question whether something may be done.

import { useState } from "preact/hooks";
import { send } from "../api/client";
import type { Explained, Layer } from "../api/records";
import { useLoad } from "../parts/load";
import { Failed } from "../parts/notes";
import { shown } from "../text/format";

const TONES = { allow: "good", ask: "warn", deny: "bad" } as const;

export function Policy() {
  const { data, error, again } = useLoad("policy", () => send<Layer[]>("POST", "/v1/policy/layers", {}));
  return (
    <div class="page">
      <h1>Policy</h1>
      <May />
      {error !== null && <Failed error={error} again={again} />}
      {data?.map((layer) => (
        <section key={layer.name}>
          <h2>{shown(layer.name)}</h2>
          <div class="scroll" tabIndex={0} role="region" aria-label={`Rules of ${layer.name}`}>
            <table class="table">
              <thead>
                <tr>
                  <th scope="col">effect</th>
                  <th scope="col">action</th>
                  <th scope="col">where</th>
                </tr>
              </thead>
              <tbody>
                {layer.rules.map((rule, at) => (
                  <tr key={at}>
                    <td class={TONES[rule.effect]}>
                      {rule.effect}
                      {rule.effect === "ask" && rule.approver === "admin" ? " an admin" : ""}
                    </td>
                    <td>
                      <code>{shown(rule.action)}</code>
                    </td>
                    <td class="dim">{shown(rule.source ?? "")}</td>
                  </tr>
                ))}
                {layer.caps.map((cap) => (
                  <tr key={cap.name}>
                    <td>at most</td>
                    <td>
                      <code>
                        {cap.name} {cap.most}
                      </code>
                    </td>
                    <td class="dim">{shown(cap.source)}</td>
                  </tr>
                ))}
                {!layer.rules.length && !layer.caps.length && (
                  <tr>
                    <td colSpan={3} class="dim">
                      no rules
                    </td>
                  </tr>
                )}
              </tbody>
            </table>
          </div>
        </section>
      ))}
    </div>
  );
}

function May() {
  const [action, setAction] = useState("");
  const [repo, setRepo] = useState("");
  const [found, setFound] = useState<Explained | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const ask = () =>
    send<Explained>("POST", "/v1/policy/explain", { action, context: { repo: repo.trim() || null } }).then(
      (answer) => (setFound(answer), setFailure(null)),
      (error: unknown) => (setFailure(error), setFound(null)),
    );
  return (
    <section class="may">
      <form
        class="line-form"
        onSubmit={(event) => {
          event.preventDefault();
          void ask();
        }}
      >
        <label for="may">May it</label>
        <input id="may" class="wide" placeholder="bash:git push origin main" value={action} onInput={(event) => setAction(event.currentTarget.value)} />
        <input aria-label="Repository" placeholder="in any repository" value={repo} onInput={(event) => setRepo(event.currentTarget.value)} />
        <button class="main" disabled={!action.trim()}>Ask</button>
      </form>
      {failure !== null && <Failed error={failure} />}
      {found && (
        <p role="status">
          <strong class={TONES[found.effect]}>{found.effect}</strong> by <code>{shown(found.rule)}</code>
          {found.approver && `; ${found.approver} may approve`}
          {found.unclear && `; ${shown(found.unclear)}`}
        </p>
      )}
    </section>
  );
}
