// What can be done in a sandbox, of a run or made by hand: a shell, its processes, its ports.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, path, send } from "../api/client";
import type { Executed, SandboxMetrics } from "../api/records";
import { useLoad } from "../parts/load";
import { Command, Failed } from "../parts/notes";
import { Bar } from "../run/receipt";
import { bytes, shown } from "../text/format";

export function Shell({ id }: { id: string }) {
  const place = useRef<HTMLDivElement>(null);
  const [state, setState] = useState("Opening a shell…");
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let end: (() => void) | null = null;
    let wanted = true;
    void import("./terminal").then(({ openTerminal }) => {
      if (wanted && place.current) end = openTerminal(place.current, id, "exec $(command -v bash || command -v sh)", setState);
    });
    return () => {
      wanted = false;
      end?.();
    };
  }, [id, turn]);
  return (
    <>
      <div class="terminal" ref={place} />
      {state && (
        <p class="dim" role="status">
          {state} <button onClick={() => setTurn(turn + 1)}>Open a new shell</button>
        </p>
      )}
    </>
  );
}

const LOOK = "awk '/^MemAvailable|^MemTotal/{print}' /proc/meminfo; ps -eo pid,user,pcpu,rss,etimes,args --sort=-pcpu 2>/dev/null | head -40 || ps";

export function Processes({ id }: { id: string }) {
  const { data, error } = useLoad(id, () => send<Executed>("POST", path`/v1/sandboxes/${id}/exec`, { argv: ["/bin/sh", "-c", LOOK], seconds: 10 }), 3);
  if (error && !data) return <Failed error={error} />;
  return <pre class="given" tabIndex={0}>{data ? shown(data.stdout || data.stderr) : "Looking…"}</pre>;
}

export function Ports({ id }: { id: string }) {
  const [port, setPort] = useState("");
  const valid = /^\d{1,5}$/.test(port) && Number(port) > 0 && Number(port) < 65_536;
  const address = path`/v1/sandboxes/${id}/ports/${port}/`;
  return (
    <div class="ports">
      <label class="field">
        <span>A web server in the sandbox listens on port</span>
        <input inputMode="numeric" value={port} placeholder="8000" onInput={(event) => setPort(event.currentTarget.value)} />
      </label>
      {valid && (
        <p>
          <a class="button" href={address} target="_blank" rel="noreferrer">
            Open port {port} in a new tab
          </a>
        </p>
      )}
      <p class="dim">The page is shown without rights of this one. A page that needs its own address:</p>
      <Command text={`cloister sandbox port ${id} ${valid ? port : "PORT"}`} />
    </div>
  );
}

/** What it uses now of what it may use. */
export function Load({ id }: { id: string }) {
  const { data } = useLoad(`load:${id}`, (signal) => get<SandboxMetrics>(path`/v1/sandboxes/${id}/metrics`, signal), 3);
  const seen = useRef<{ before: SandboxMetrics | null; now: SandboxMetrics | null }>({ before: null, now: null });
  if (!data) return null;
  if (seen.current.now !== data) seen.current = { before: seen.current.now, now: data };
  const { before } = seen.current;
  const busy = before && data.at > before.at ? (data.cpu_seconds - before.cpu_seconds) / (data.at - before.at) : null;
  return (
    <div class="bars" aria-label="What it uses now" role="group">
      <Bar label="processors" spent={busy ?? 0} limit={data.cpus} words={(value) => (busy === null && value === 0 ? "…" : value.toFixed(1))} />
      <Bar label="memory" spent={data.memory_bytes} limit={data.memory_limit_bytes} words={bytes} />
      {data.disk_bytes !== null && <Bar label="written" spent={data.disk_bytes} limit={data.disk_limit_bytes} words={bytes} />}
      {data.ports.length > 0 && <p class="dim">Listens on {data.ports.slice(0, 20).join(", ")}</p>}
    </div>
  );
}
