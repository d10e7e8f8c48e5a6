// Output of a command: the end of it with colours, the rest when asked for.

import { useState } from "preact/hooks";
import { Ansi } from "../text/ansi";
import { count } from "../text/format";

const LINES = 40;
const MOST = 4_000;

export function Output({ text, live = false }: { text: string; live?: boolean }) {
  const [all, setAll] = useState(false);
  const [wanted, setWanted] = useState("");
  const lines = text.split("\n");
  const found = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted.toLowerCase())) : lines;
  const kept = found.slice(-(all || wanted ? MOST : LINES));
  const hidden = found.length - kept.length;
  return (
    <div class="output">
      {(hidden > 0 || all) && (
        <div class="output-bar">
          {hidden > 0 && !all && <button onClick={() => setAll(true)}>Show all {count(found.length)} lines</button>}
          {hidden > 0 && all && <span>The last {count(MOST)} lines</span>}
          {(all || wanted) && (
            <input type="search" placeholder="Search in this output" aria-label="Search in this output" onInput={(event) => setWanted(event.currentTarget.value)} />
          )}
        </div>
      )}
      <pre tabIndex={0} aria-label="Output" class={live ? "live" : ""}>
        <Ansi text={kept.join("\n")} />
      </pre>
    </div>
  );
}
