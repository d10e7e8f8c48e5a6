// Sandboxes made by hand: what they are, and what can be done in them.

import { useEffect, useState } from "preact/hooks";
import { get, me, path, send } from "../api/client";
import type { SandboxInfo, SnapshotInfo, TemplateInfo } from "../api/records";
import { useLoad } from "../parts/load";
import { Empty, Failed } from "../parts/notes";
import { go, query, settle } from "../router";
import { age, bytes, date, duration, now, shown } from "../text/format";
import { Files } from "./files";
import { Load, Ports, Processes, Shell } from "./parts";

export function Sandboxes() {
  const list = useLoad("sandboxes", () => get<SandboxInfo[]>("/v1/sandboxes"), 5);
  const templates = useLoad("templates", () => get<TemplateInfo[]>("/v1/templates"));
  const [template, setTemplate] = useState("default");
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<unknown>(null);
  const make = async () => {
    setBusy(true);
    try {
      const made = await send<SandboxInfo>("POST", "/v1/sandboxes", { template });
      go(`/sandboxes/${made.id}`);
    } catch (error) {
      setFailure(error);
    }
    setBusy(false);
  };
  return (
    <div class="page">
      <div class="filters">
        <h1>Sandboxes</h1>
        {me.value?.role === "admin" && (
          <>
            <select aria-label="Template" value={template} onChange={(event) => setTemplate(event.currentTarget.value)}>
              {(templates.data ?? []).map((one) => (
                <option key={one.name}>{one.name}</option>
              ))}
            </select>
            <button class="main" disabled={busy} onClick={() => void make()}>
              {busy ? "Opening…" : "Open a sandbox"}
            </button>
          </>
        )}
      </div>
      {(failure !== null || list.error !== null) && <Failed error={failure ?? list.error} />}
      {list.data?.length === 0 && (
        <Empty title="No sandboxes" command="cloister sandbox create">
          <p>Sandboxes that are opened by hand are listed here; those of runs belong to their runs.</p>
        </Empty>
      )}
      {list.data && list.data.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Sandboxes">
          <table class="table">
            <thead>
              <tr>
                <th scope="col">sandbox</th>
                <th scope="col">template</th>
                <th scope="col">tier</th>
                <th scope="col" class="right">memory</th>
                <th scope="col" class="right">age</th>
                <th scope="col" class="right">ends in</th>
              </tr>
            </thead>
            <tbody>
              {list.data.map((one) => (
                <tr key={one.id}>
                  <td>
                    <a href={`/sandboxes/${one.id}`}>{one.id}</a>
                  </td>
                  <td>{shown(one.template)}</td>
                  <td>{one.isolation.tier}</td>
                  <td class="right">{bytes(one.quota.memory_bytes ?? 0)}</td>
                  <td class="right">{age(now.value - one.created_at)}</td>
                  <td class="right">{age(one.expires_at - now.value)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

const PARTS = [
  ["terminal", "Terminal"],
  ["files", "Files"],
  ["processes", "Processes"],
  ["ports", "Ports"],
  ["snapshots", "Snapshots"],
] as const;

export function Sandbox({ id }: { id: string }) {
  const [leaving, setLeaving] = useState(false);
  const [failure, setFailure] = useState<unknown>(null);
  if (!leaving) return <Inside id={id} failure={failure} setFailure={setFailure} destroy={() => setLeaving(true)} />;
  const failed = (error: unknown) => {
    setFailure(error);
    setLeaving(false);
  };
  return <Leaving id={id} failed={failed} />;
}

/** Deletes the sandbox when nothing on the page asks for it any more. */
function Leaving({ id, failed }: { id: string; failed: (error: unknown) => void }) {
  useEffect(() => void send("DELETE", path`/v1/sandboxes/${id}`).then(() => go("/sandboxes"), failed), []);
  return <p class="dim pad">Deleting the sandbox…</p>;
}

type InsideProps = { id: string; failure: unknown; setFailure: (error: unknown) => void; destroy: () => void };

function Inside({ id, failure, setFailure, destroy }: InsideProps) {
  const { data, error, again } = useLoad(id, (signal) => get<SandboxInfo>(path`/v1/sandboxes/${id}`, signal), 10);
  const part = PARTS.find(([name]) => name === query.value.get("part"))?.[0] ?? "terminal";
  if (error && !data) {
    return (
      <Empty title="This sandbox is not here" command="cloister sandbox ls">
        <Failed error={error} again={again} />
        <a href="/sandboxes">To the sandboxes</a>
      </Empty>
    );
  }
  if (!data) return <p class="dim pad">Fetching the sandbox…</p>;
  const { isolation, quota } = data;
  const fork = () => void send<SandboxInfo[]>("POST", path`/v1/sandboxes/${id}/fork`, {}).then(([made]) => made && go(`/sandboxes/${made.id}`), setFailure);
  return (
    <div class="page sandbox">
      <div class="filters">
        <h1>{data.id}</h1>
        <button onClick={fork}>Fork</button>
        <button class="bad" onClick={() => confirm(`Delete ${id} and everything in it?`) && destroy()}>Delete</button>
      </div>
      <p class="run-facts">
        <span>{shown(data.template)}</span>
        <span>
          {isolation.tier}: {isolation.runtime}, {isolation.shares_kernel ? "shares this machine's kernel" : "a kernel of its own"}
        </span>
        <span>
          {quota.cpus} cpus, {bytes(quota.memory_bytes ?? 0)} memory, {quota.processes} processes, {bytes(quota.disk_bytes ?? 0)} disk
        </span>
        <span>ends in {duration(Math.max(0, data.expires_at - now.value))}</span>
      </p>
      <Load key={id} id={id} />
      {failure !== null && <Failed error={failure} />}
      <div class="tabs" role="tablist" aria-label="Parts of the sandbox">
        {PARTS.map(([name, title]) => (
          <button key={name} role="tab" id={`tab-${name}`} aria-selected={part === name} aria-controls="part" onClick={() => settle(`?part=${name}`)}>
            {title}
          </button>
        ))}
      </div>
      <div id="part" role="tabpanel" aria-labelledby={`tab-${part}`}>
        {part === "terminal" && <Shell id={id} />}
        {part === "files" && <Files sandbox={id} />}
        {part === "processes" && <Processes id={id} />}
        {part === "ports" && <Ports id={id} />}
        {part === "snapshots" && <Snapshots id={id} />}
      </div>
    </div>
  );
}

function Snapshots({ id }: { id: string }) {
  const { data, error, again } = useLoad(id, () => get<SnapshotInfo[]>(path`/v1/sandboxes/${id}/snapshots`));
  const [failure, setFailure] = useState<unknown>(null);
  const take = () => void send("POST", path`/v1/sandboxes/${id}/snapshots`, {}).then(again, setFailure);
  return (
    <div>
      <p class="pad">
        <button class="main" onClick={take}>Take a snapshot</button>
      </p>
      {(failure !== null || error !== null) && <Failed error={failure ?? error} />}
      <ul class="plain-list">
        {data?.map((one) => (
          <li key={one.id} class="file-line">
            <code>{shown(one.name ?? one.id)}</code>
            <span class="dim right">{bytes(one.size_bytes)}</span>
            <time class="dim">{date(one.created_at)}</time>
            <span />
          </li>
        ))}
      </ul>
    </div>
  );
}
