// Tools: what models have beside the built-in ones, what the rules say of each, and the skills.

import { useState } from "preact/hooks";
import { get, me, send } from "../api/client";
import type { SkillList, ToolInfo, ToolList, ToolTried } from "../api/records";
import { useLoad } from "../parts/load";
import { Failed } from "../parts/notes";
import { go, query } from "../router";
import { duration, oneLine, shown } from "../text/format";

export function Tools() {
  const repo = query.value.get("repo") ?? "";
  const [typed, setTyped] = useState(repo);
  const asked = repo ? `?repo=${encodeURIComponent(repo)}` : "";
  const tools = useLoad(`tools ${repo}`, () => get<ToolList>(`/v1/tools${asked}`));
  const skills = useLoad(`skills ${repo}`, () => get<SkillList>(`/v1/skills${asked}`));
  return (
    <div class="page">
      <h1>Tools</h1>
      <p class="dim">What a run has beside the built-in tools: from the settings, from installed packages, and from a repository.</p>
      <form
        class="inline"
        onSubmit={(event) => {
          event.preventDefault();
          go(typed.trim() ? `/tools?repo=${encodeURIComponent(typed.trim())}` : "/tools");
        }}
      >
        <label>
          Repository on the server <input value={typed} placeholder="/srv/shop" onInput={(event) => setTyped(event.currentTarget.value)} />
        </label>{" "}
        <button>Show</button>
      </form>
      {tools.error !== null && <Failed error={tools.error} again={tools.again} />}
      {tools.data?.tools.length === 0 && <p class="dim">There are none: declare one in .cloister/tools, or in the settings.</p>}
      {!!tools.data?.tools.length && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Tools">
          <table class="table">
            <thead>
              <tr>
                <th scope="col">tool</th>
                <th scope="col">does</th>
                <th scope="col">runs in</th>
                <th scope="col">rules</th>
                <th scope="col">from</th>
                <th scope="col">trial</th>
              </tr>
            </thead>
            <tbody>
              {tools.data.tools.map((tool) => (
                <ToolLine key={`${tool.kind} ${tool.name}`} tool={tool} repo={repo} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Problems found={tools.data?.problems ?? []} />
      <h2>Skills</h2>
      {skills.error !== null && <Failed error={skills.error} again={skills.again} />}
      {skills.data?.skills.length === 0 && <p class="dim">There are none.</p>}
      <ul class="plain-list">
        {skills.data?.skills.map((skill) => (
          <li key={skill.name}>
            <code>{shown(skill.name)}</code> {oneLine(skill.description, 200)}{" "}
            <span class="dim">
              {shown(skill.source)} ({skill.layer}), {skill.digest.slice(0, 12)}
            </span>
          </li>
        ))}
      </ul>
      <Problems found={skills.data?.problems ?? []} />
    </div>
  );
}

function Problems({ found }: { found: readonly string[] }) {
  return (
    <ul class="plain-list">
      {found.map((one) => (
        <li key={one} class="bad">
          {shown(one)}
        </li>
      ))}
    </ul>
  );
}

function ToolLine({ tool, repo }: { tool: ToolInfo; repo: string }) {
  const [given, setGiven] = useState("{}");
  const [trial, setTrial] = useState<ToolTried | "busy" | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const tryIt = () => {
    let values: unknown;
    try {
      values = JSON.parse(given);
    } catch {
      setFailure(new Error("The arguments are a JSON object."));
      return;
    }
    setTrial("busy");
    setFailure(null);
    const body = { arguments: values, ...(repo ? { repo } : {}) };
    send<ToolTried>("POST", `/v1/tools/${encodeURIComponent(tool.name)}/try`, body).then(setTrial, (error: unknown) => (setFailure(error), setTrial(null)));
  };
  return (
    <tr>
      <th scope="row">
        <code>{shown(tool.name)}</code>
      </th>
      <td>{oneLine(tool.description, 300)}</td>
      <td>{shown(tool.where)}</td>
      <td>
        <span class={tool.effect === "allow" ? "good" : tool.effect === "deny" ? "bad" : ""}>{tool.effect}</span> <code class="dim">{shown(tool.rule)}</code>
      </td>
      <td class="dim">{shown(tool.source)}</td>
      <td>
        {me.value?.role === "admin" && tool.kind !== "server" && tool.effect !== "deny" && (
          <>
            <input aria-label={`Arguments of ${tool.name}`} value={given} onInput={(event) => setGiven(event.currentTarget.value)} />{" "}
            <button aria-label={`Try ${tool.name}`} disabled={trial === "busy"} onClick={tryIt}>
              {trial === "busy" ? "Calling…" : "Try"}
            </button>
          </>
        )}
        <span role="status">
          {trial && trial !== "busy" && (
            <>
              <span class={trial.ok ? "good" : "bad"}>
                {trial.ok ? "worked" : "failed"} in {duration(trial.seconds)}
              </span>
              <pre>{shown(trial.text.slice(0, 4_000))}</pre>
            </>
          )}
          {failure !== null && <Failed error={failure} />}
        </span>
      </td>
    </tr>
  );
}
