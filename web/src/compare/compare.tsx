// Two runs or attempts side by side: outcome, evidence, cost, and how their changes differ.

import { useState } from "preact/hooks";
import { get } from "../api/client";
import type { Compared, Side } from "../api/records";
import { useLoad } from "../parts/load";
import { Failed } from "../parts/notes";
import { Badge, standing } from "../parts/outcome";
import { query, settle } from "../router";
import { count, dollars, duration, oneLine, plural, shown } from "../text/format";

export function Compare() {
  const a = query.value.get("a") ?? "";
  const b = query.value.get("b") ?? "";
  const [left, setLeft] = useState(a);
  const [right, setRight] = useState(b);
  return (
    <div class="page">
      <h1>Compare</h1>
      <form
        class="line-form"
        onSubmit={(event) => {
          event.preventDefault();
          settle(`/compare?${new URLSearchParams({ a: left.trim(), b: right.trim() })}`);
        }}
      >
        <input aria-label="First run or attempt" placeholder="RUN or RUN/0" value={left} onInput={(event) => setLeft(event.currentTarget.value)} />
        <input aria-label="Second run or attempt" placeholder="RUN or RUN/1" value={right} onInput={(event) => setRight(event.currentTarget.value)} />
        <button class="main" disabled={!left.trim() || !right.trim()}>Compare</button>
      </form>
      {a && b && <Found key={`${a} ${b}`} a={a} b={b} />}
    </div>
  );
}

function Found({ a, b }: { a: string; b: string }) {
  const { data, error, again } = useLoad(`${a} ${b}`, () => get<Compared>(`/v1/compare?${new URLSearchParams({ a, b })}`));
  if (error && !data) return <Failed error={error} again={again} />;
  if (!data) return <p class="dim">Comparing…</p>;
  const sides = [data.a, data.b] as const;
  const rows: Array<[string, (side: Side) => string]> = [
    ["asked", (side) => oneLine(side.prompt, 120)],
    ["how it ended", (side) => oneLine(side.reason ?? "", 160)],
    ["fixed", (side) => (side.comparison ? count(side.comparison.fixed.length) : "–")],
    ["still red", (side) => (side.comparison ? count(side.comparison.still.length + side.comparison.new.length) : "–")],
    ["files", (side) => `${plural(side.files.length, "file")} +${sum(side, "added")} −${sum(side, "removed")}`],
    ["steps", (side) => count(side.steps)],
    ["tokens", (side) => count(side.usage.input_tokens + side.usage.output_tokens)],
    ["cost", (side) => dollars(side.cost) || "unknown"],
    ["time", (side) => duration(side.seconds)],
  ];
  return (
    <>
      <div class="scroll" tabIndex={0} role="region" aria-label="The two sides">
        <table class="table pair">
          <thead>
            <tr>
              <th scope="col"><span class="hidden">What</span></th>
              {sides.map((side) => (
                <th scope="col" key={side.name}>
                  <a href={`/runs/${side.run}`}>{side.name}</a>{" "}
                  <Badge standing={standing({ state: side.outcome ? "finished" : "running", outcome: side.outcome })} />
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(([name, of]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                {sides.map((side) => (
                  <td key={side.name} class={of(data.a) === of(data.b) ? "dim" : ""}>
                    {of(side)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Tests a={data.a} b={data.b} />
      <h2>Diff of the diffs</h2>
      {data.same_change ? (
        <p class="dim">Both made the same change.</p>
      ) : (
        <pre class="diff-of-diffs" tabIndex={0}>
          {data.diff.split("\n").slice(0, 5_000).map((line, at) => (
            <span key={at} class={line.startsWith("+") ? "code-added" : line.startsWith("-") ? "code-removed" : ""}>
              {shown(line.slice(0, 1_000))}
              {"\n"}
            </span>
          ))}
        </pre>
      )}
    </>
  );
}

const MOST = 200;

/** How each test stands at a side: the worst that its comparison says. */
function tests({ comparison }: Side): Map<string, string> {
  const found = new Map<string, string>();
  if (!comparison) return found;
  const { fixed, flaky, not_run, skipped, missing, still, weakened } = comparison;
  const all = { fixed, flaky, "not run": not_run, skipped, missing, "still red": still, weakened, "newly red": comparison.new };
  for (const [word, names] of Object.entries(all)) for (const name of names) found.set(name, word);
  return found;
}

function Tests({ a, b }: { a: Side; b: Side }) {
  const [left, right] = [tests(a), tests(b)];
  const names = [...new Set([...left.keys(), ...right.keys()])].filter((name) => left.get(name) !== right.get(name)).sort();
  if (!names.length) return null;
  const word = (side: Side, found: Map<string, string>, name: string) => {
    const said = found.get(name);
    return <td class={said === "fixed" ? "good" : said ? "bad" : "dim"}>{said ?? (side.comparison ? "as before" : "no checks")}</td>;
  };
  return (
    <>
      <h2>Tests that differ</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Tests that differ">
        <table class="table">
          <thead>
            <tr>
              <th scope="col">test</th>
              <th scope="col">{a.name}</th>
              <th scope="col">{b.name}</th>
            </tr>
          </thead>
          <tbody>
            {names.slice(0, MOST).map((name) => (
              <tr key={name}>
                <th scope="row">{shown(name)}</th>
                {word(a, left, name)}
                {word(b, right, name)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {names.length > MOST && <p class="dim">The first {MOST} of {count(names.length)}.</p>}
    </>
  );
}

function sum(side: Side, what: "added" | "removed"): string {
  return count(side.files.reduce((total, file) => total + (file[what] ?? 0), 0));
}
