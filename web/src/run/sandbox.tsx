// The sandboxes that a run works in now: a terminal, files, processes and ports, by the rules of the run.

import { useState } from "preact/hooks";
import { get, me, path } from "../api/client";
import type { SandboxInfo } from "../api/records";
import { useLoad } from "../parts/load";
import { Command, Empty, Failed } from "../parts/notes";
import { Files } from "../sandboxes/files";
import { Ports, Processes, Shell } from "../sandboxes/parts";
import { shown } from "../text/format";

const PARTS = ["terminal", "files", "processes", "ports"] as const;

export function RunSandbox({ run, finished }: { run: string; finished: boolean }) {
  const { data, error, again } = useLoad(`${run}:${finished}`, () => get<SandboxInfo[]>(path`/v1/runs/${run}/sandboxes`), finished ? 0 : 3);
  const [asked, setAsked] = useState("");
  const [part, setPart] = useState<(typeof PARTS)[number] | "">("");
  if (error !== null && !data) return <Failed error={error} again={again} />;
  if (!data) return <p class="dim pad">Looking for its sandbox…</p>;
  const one = data.find((each) => each.id === asked) ?? data[0];
  if (!one) {
    return (
      <Empty title={finished ? "Its sandbox is gone" : "It works in no sandbox now"} command={`cloister fork ${run}`}>
        <p>
          {finished
            ? "The sandboxes of a run end with it; its files are in the diff. A fork works in a new sandbox with the same files."
            : "A sandbox can be entered while an attempt works in it, and only at the server that drives the run."}
        </p>
      </Empty>
    );
  }
  if (me.value?.role !== "admin") return <p class="dim pad">Only the role admin may enter the sandbox of a run.</p>;
  return (
    <div class="sandbox">
      <p class="run-facts">
        {data.length > 1 ? (
          <select aria-label="Attempt" value={one.id} onChange={(event) => setAsked(event.currentTarget.value)}>
            {data.map((each) => (
              <option key={each.id} value={each.id}>
                attempt {each.metadata["attempt"]}
              </option>
            ))}
          </select>
        ) : (
          <code>{one.id}</code>
        )}
        <span>
          {one.isolation.tier}, {one.isolation.shares_kernel ? "shares this machine's kernel" : "a kernel of its own"}
        </span>
        <span>{shown(one.template)}</span>
      </p>
      <div class="filters" role="group" aria-label="Parts of the sandbox">
        {PARTS.map((name) => (
          <button key={name} aria-pressed={part === name} onClick={() => setPart(name)}>
            {name}
          </button>
        ))}
      </div>
      {part === "" && (
        <div class="pad">
          <p>What you do here is entered in the log under your name, the model is told that files may change, and the rules of the run hold.</p>
          <p class="dim">It cannot change the outcome by itself: the proof is taken in a fresh sandbox from the saved files.</p>
          <Command text={`cloister sandbox shell ${data.length > 1 ? `${run}/${one.metadata["attempt"]}` : run}`} />
        </div>
      )}
      {part === "terminal" && <Shell key={one.id} id={one.id} />}
      {part === "files" && <Files key={one.id} sandbox={one.id} />}
      {part === "processes" && <Processes key={one.id} id={one.id} />}
      {part === "ports" && <Ports key={one.id} id={one.id} />}
    </div>
  );
}
