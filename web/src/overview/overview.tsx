// All runs: those that ask first, then those that run, then the rest by age.

import { useState } from "preact/hooks";
import type { RunRow } from "../api/records";
import { Empty, Failed } from "../parts/notes";
import { Badge, Spark, standing } from "../parts/outcome";
import { query, settle } from "../router";
import { more, older, runs } from "./live";
import { age, count, date, dollars, duration, now, oneLine, repoName, shown } from "../text/format";

const STATES = ["all", "running", "proven", "unbroken", "unproven", "red", "failed", "stopped"] as const;

export function Overview() {
  const data = runs.value;
  const wanted = query.value.get("q") ?? "";
  const which = query.value.get("state") ?? "all";
  const [limit, setLimit] = useState(200);
  const [failure, setFailure] = useState<unknown>(null);
  const filter = (changes: Record<string, string>) => {
    const next = new URLSearchParams(query.value);
    for (const [name, value] of Object.entries(changes)) value && value !== "all" ? next.set(name, value) : next.delete(name);
    settle(`/${next.size ? `?${next}` : ""}`);
  };
  if (!data) return <p class="dim pad">Fetching the runs…</p>;
  if (!data.length) {
    return (
      <Empty title="No runs yet" command='cloister run "fix the failing test"'>
        <p>Give it a prompt and a repository; the change comes back on a branch, with proof.</p>
      </Empty>
    );
  }
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const found = data.filter((row) => {
    const text = `${row.prompt} ${row.repo} ${row.who} ${row.id}`.toLowerCase();
    return (which === "all" || row.state === which || row.outcome === which) && words.every((word) => text.includes(word));
  });
  return (
    <div class="overview">
      <div class="filters">
        <h1>Runs</h1>
        <input type="search" aria-label="Search in runs" placeholder="Prompt, repository, person" value={wanted} onInput={(event) => filter({ q: event.currentTarget.value })} />
        <select aria-label="State" value={which} onChange={(event) => filter({ state: event.currentTarget.value })}>
          {STATES.map((state) => (
            <option key={state}>{state}</option>
          ))}
        </select>
      </div>
      {!found.length && <p class="dim pad">No run matches.</p>}
      {groups(found.slice(0, limit)).map(([title, rows]) => (
        <section key={title}>
          <h2>
            {title} <span class="number">{rows.length}</span>
          </h2>
          <ul class="runs">
            {rows.map((row) => (
              <RunLine key={row.id} row={row} />
            ))}
          </ul>
        </section>
      ))}
      {found.length > limit && <button onClick={() => setLimit(limit + 300)}>Show more</button>}
      {found.length <= limit && more.value && (
        <p class="pad">
          <button onClick={() => void older().then(() => setFailure(null), setFailure)}>Look at older runs too</button>{" "}
          <span class="dim">These are the newest {count(data.length)}.</span>
        </p>
      )}
      {failure !== null && <Failed error={failure} />}
    </div>
  );
}

function groups(rows: readonly RunRow[]): Array<[string, RunRow[]]> {
  const midnight = new Date().setHours(0, 0, 0, 0) / 1000;
  const made: Array<[string, RunRow[]]> = [
    ["Asks you", []],
    ["Running", []],
    ["Today", []],
    ["Earlier", []],
  ];
  for (const row of rows) {
    const place = row.state === "finished" ? (row.updated_at >= midnight ? 2 : 3) : row.asks ? 0 : 1;
    made[place]![1].push(row);
  }
  return made.filter(([, found]) => found.length);
}

/** What it asks, where it is, or why it waits. */
function about(row: RunRow): string {
  if (row.state === "finished") return "";
  const [first] = row.approvals;
  if (first) return oneLine(first.action, 120);
  if (row.questions[0]) return oneLine(row.questions[0].text, 120);
  if (row.state === "queued") return row.ahead ? `${row.ahead} before it` : "";
  if (row.state === "paused") return oneLine(row.reason ?? "", 120);
  if (!row.phase || !row.phase_since) return "";
  return `${row.phase} for ${age(now.value - row.phase_since)}${usually(row.phase_usual)}`;
}

/** How long a phase took in earlier runs of the repository. */
export function usually(seconds: number | null): string {
  return seconds === null ? "" : `, usually ${duration(seconds)}`;
}

function RunLine({ row }: { row: RunRow }) {
  const interrupted = row.state === "running" && !row.owner_lives;
  const since = row.state === "finished" ? row.updated_at : row.created_at;
  return (
    <li>
      <a class="run-line" href={`/runs/${row.id}`}>
        <Badge standing={standing({ ...row, asks: row.state === "finished" ? 0 : row.asks, interrupted })} />
        <span class="run-prompt">
          {oneLine(row.prompt)}
          {about(row) && <span class="run-about">{about(row)}</span>}
        </span>
        <Spark reds={row.reds} />
        <span class="run-repo">{repoName(row.repo)}</span>
        <span class="run-cost">{dollars(row.cost)}</span>
        <span class="run-who">{shown(row.who)}</span>
        <time class="run-age" title={date(since)}>
          {age(now.value - since)}
        </time>
      </a>
    </li>
  );
}
