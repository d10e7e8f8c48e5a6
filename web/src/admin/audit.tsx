// The audit: every action under its name, newest first, and whether it is what was written.

import { useRef, useState } from "preact/hooks";
import { get } from "../api/client";
import type { AuditEntry, Verdict } from "../api/records";
import { useLoad } from "../parts/load";
import { Failed } from "../parts/notes";
import { query, settle } from "../router";
import { count, date, oneLine, shown } from "../text/format";

const PAGE = 500;

/** The newest entries that the server finds. */
function newest(only: Record<string, string>): Promise<AuditEntry[]> {
  const given = Object.entries(only).filter(([, value]) => value);
  return get<AuditEntry[]>(`/v1/audit?${new URLSearchParams([["newest", "true"], ["limit", String(PAGE + 1)], ...given])}`);
}

export function Audit() {
  const run = query.value.get("run") ?? "";
  const kind = query.value.get("kind") ?? "";
  const who = query.value.get("who") ?? "";
  const { data, error, again } = useLoad(JSON.stringify([run, kind, who]), () => newest({ run, kind, who }), 0, "audit");
  const kinds = useRef(new Set<string>());
  for (const entry of data ?? []) kinds.current.add(entry.kind);
  if (kind) kinds.current.add(kind);
  const set = (name: string, value: string) => {
    const next = new URLSearchParams(query.value);
    value ? next.set(name, value) : next.delete(name);
    settle(`/audit${next.size ? `?${next}` : ""}`);
  };
  return (
    <div class="page">
      <div class="filters">
        <h1>Audit</h1>
        <input aria-label="Run" placeholder="Run" value={run} onChange={(event) => set("run", event.currentTarget.value.trim())} />
        <input aria-label="Person" placeholder="Person" value={who} onInput={(event) => set("who", event.currentTarget.value.trim())} />
        <select aria-label="Kind" value={kind} onChange={(event) => set("kind", event.currentTarget.value)}>
          <option value="">all kinds</option>
          {[...kinds.current].sort().map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      </div>
      <Verify />
      {error !== null && <Failed error={error} again={again} />}
      {data && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Entries">
          <table class="table broad">
            <thead>
              <tr>
                <th scope="col" class="right">entry</th>
                <th scope="col">when</th>
                <th scope="col">kind</th>
                <th scope="col">who</th>
                <th scope="col">run</th>
                <th scope="col">detail</th>
              </tr>
            </thead>
            <tbody>
              {data.slice(0, PAGE).map((entry) => (
                <tr key={entry.number}>
                  <td class="right">{entry.number}</td>
                  <td class="nowrap">{date(entry.at_us / 1e6)}</td>
                  <td>{entry.kind}</td>
                  <td class="whom">{oneLine(entry.who, 60)}</td>
                  <td>{entry.run && <a href={`/runs/${entry.run}${entry.seq ? `#e${entry.seq}` : ""}`}>{entry.run}</a>}</td>
                  <td title={shown(entry.detail).slice(0, 2_000)}>
                    <code>{oneLine(entry.detail, 160)}</code>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {data && data.length > PAGE && <p class="dim">The newest {PAGE}: name a run, a person or a kind to see older ones.</p>}
    </div>
  );
}

function Verify() {
  const [state, setState] = useState<Verdict | "busy" | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const verify = () => {
    setState("busy");
    get<Verdict>("/v1/audit/verify").then(setState, (error: unknown) => (setFailure(error), setState(null)));
  };
  return (
    <p class="verify" role="status">
      <button onClick={verify} disabled={state === "busy"}>
        {state === "busy" ? "Verifying…" : "Verify now"}
      </button>{" "}
      {failure !== null && <Failed error={failure} />}
      {state && state !== "busy" && (
        <>
          <strong class={state.ok ? "good" : "bad"}>{state.ok ? "It is what was written" : "It is not what was written"}</strong>:{" "}
          {count(state.entries)} entries, {count(state.signed)} signed.{" "}
          {state.problems.slice(0, 5).map((flaw) => `${shown(flaw.why)}${flaw.number ? ` (entry ${flaw.number})` : ""}. `)}
        </>
      )}
    </p>
  );
}
