// The page of one run: what was asked, where it stands, what it needs; its timeline beside the evidence and the diff.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, me, path, sentence, steer } from "../api/client";
import type { Access, RunView } from "../api/records";
import { runs } from "../overview/live";
import { usually } from "../overview/overview";
import { Icon } from "../parts/icons";
import { useKeys } from "../parts/keys";
import { later } from "../parts/later";
import { useLoad } from "../parts/load";
import { Empty, Failed } from "../parts/notes";
import { Badge, standing } from "../parts/outcome";
import { narrow, query, settle } from "../router";
import { age, clock, dollars, duration, modelName, now, oneLine, plural, repoName, shown } from "../text/format";
import { Composer } from "./composer";
import { asPrompt, Diff } from "./diff";
import { Evidence } from "./evidence";
import { Attempts } from "./attempts";
import type { Fold } from "./fold";
import { Fork, Slider } from "./slider";
import { RunLog } from "./log";
import { QuestionCard } from "./question";
import { Receipt } from "./receipt";
import { AskRow } from "./rows";
import { Markdown } from "../text/markdown";
import { Timeline } from "./timeline";

const Share = later(() => import("./share").then((found) => found.Share));
const RunSandbox = later(() => import("./sandbox").then((found) => found.RunSandbox));

const PANES = [
  ["timeline", "Timeline", "g l"],
  ["plan", "Plan", "g q"],
  ["evidence", "Evidence", "g e"],
  ["diff", "Diff", "g d"],
  ["attempts", "Attempts", "g a"],
  ["sandbox", "Sandbox", "g i"],
  ["receipt", "Cost", "g c"],
] as const;
type Pane = (typeof PANES)[number][0];

export function RunPage({ run }: { run: string }) {
  const log = useMemo(() => new RunLog(run), [run]);
  useEffect(() => () => log.close(), [log]);
  if (log.error.value && !log.view.value) {
    return (
      <Empty title="This run cannot be shown" command="cloister ps">
        <Failed error={log.error.value.why} again={log.error.value.retry === null ? undefined : log.again} />
      </Empty>
    );
  }
  if (!log.view.value) return <p class="dim pad">Fetching the run…</p>;
  return <Loaded log={log} id={log.view.value.id} />;
}

function Loaded({ log, id }: { log: RunLog; id: string }) {
  const version = log.version.value;
  const at = Number(query.value.get("at")) || null;
  // The run as it looked then: folded from the log up to there.
  const fold = useMemo(() => (at ? log.past(at) : log.now()), at ? [log, at, log.whole.value] : [log.fold, version]);
  const saved = fold.saves.at(-1);
  const [forking, setForking] = useState<{ seq: number } | null>(null);
  const panes = PANES.filter(([name]) => name !== "plan" || fold.plan);
  const asked = panes.find(([name]) => name === query.value.get("pane"))?.[0];
  const pane: Pane = narrow.value ? (asked ?? "timeline") : asked === "timeline" || !asked ? "evidence" : asked;
  const show = (name: Pane) => settle(address({ pane: name }));
  const access = useLoad(`access:${id}`, () => get<Access>(path`/v1/runs/${id}/access`), 60).data;
  const may = access ? access.role !== "viewer" : me.value?.known !== false && me.value?.role !== "viewer";
  const approves = access ? access.approves !== null : may;
  const [sharing, setSharing] = useState(false);
  const [failure, setFailure] = useState<unknown>(null);
  const asks = [...fold.asks.values()];
  // The question that a person is answering: its card stays, also after its deadline.
  const [held, setHeld] = useState("");
  const questions = [...fold.questions.values()].filter((one) => !one.over && (!one.by || (one.asked.question === held && one.by === "deadline" && !one.later)));
  const answer = (ask: string, given: "allow" | "deny") =>
    void steer(path`/v1/runs/${id}/answer`, { ask, answer: given }).then(() => setFailure(null), setFailure);
  useKeys([
    ...panes.map(([name, title, keys]) => ({ keys, does: title.toLowerCase(), run: () => show(name) })),
    ...(may && saved ? [{ keys: "f", does: at ? "fork from here" : "fork from the last save point", run: () => setForking({ seq: saved.seq }) }] : []),
    ...(at ? [{ keys: "Escape", does: "back to now", run: () => settle(address({ at: "" })) }] : []),
    ...(may && asks[0] && !at
      ? [
          ...(approves ? [{ keys: "a", does: "allow what is asked", run: () => answer(asks[0]!.ask.ask, "allow") }] : []),
          { keys: "d", does: "deny what is asked", run: () => answer(asks[0]!.ask.ask, "deny") },
        ]
      : []),
  ]);
  useEffect(() => {
    document.title = `${oneLine(fold.request?.prompt ?? "Run", 60)} · Cloister`;
  }, [fold.request]);
  return (
    <div class="run" data-pane={pane}>
      <Head log={log} fold={fold} past={at !== null} access={access} share={access?.shares ? () => setSharing(!sharing) : null}>
        {sharing && <Share run={id} close={() => setSharing(false)} />}
      </Head>
      <div class="tabs" role="tablist" aria-label="Parts of the run">
        {panes.map(([name, title]) => (
          <button key={name} role="tab" id={`tab-${name}`} class={`tab-${name}`} aria-selected={pane === name} aria-controls={`pane-${name}`} onClick={() => show(name)}>
            {title}
          </button>
        ))}
      </div>
      <section class="run-left" aria-label="Timeline">
        {!at && asks.map((ask) => <AskRow key={ask.key} row={ask} answer={may ? answer : null} approves={approves} />)}
        {!at &&
          questions.map((one, index) => (
            <QuestionCard
              key={one.key}
              row={one}
              first={index === 0}
              reply={may ? (text) => steer(path`/v1/runs/${id}/questions`, { question: one.asked.question, text }) : null}
              hold={() => setHeld(one.asked.question)}
              close={() => setHeld("")}
            />
          ))}
        <Timeline key={at ? "past" : "now"} log={log} fold={fold} version={at ? at : version} past={at !== null} hold={may ? setHeld : null} />
        {failure !== null && <Failed error={failure} />}
        <Slider
          events={log.events}
          whole={log.whole.value === 1}
          at={at}
          move={(seq) => settle(address({ at: seq ? String(seq) : "" }))}
          fork={may && saved ? () => setForking({ seq: saved.seq }) : null}
        />
        {at ? null : <Composer run={id} fold={fold} may={may} />}
        {forking && <Fork run={id} seq={forking.seq} finished={log.fold.state === "finished"} close={() => setForking(null)} />}
      </section>
      <section class="run-right" role="tabpanel" id={`pane-${pane}`} aria-labelledby={`tab-${pane}`} tabIndex={0}>
        {pane === "diff" ? (
          <Diff
            run={id}
            at={at ? (saved?.seq ?? 0) : null}
            version={Math.max(fold.changed, saved?.seq ?? 0)}
            comment={may && !at ? async (comments) => void (await steer(path`/v1/runs/${id}/say`, { text: asPrompt(comments) })) : null}
          />
        ) : pane === "plan" ? (
          <div class="plan">
            <Markdown text={fold.plan} />
          </div>
        ) : pane === "receipt" ? (
          <Receipt run={id} fold={fold} past={at !== null} />
        ) : pane === "sandbox" ? (
          <RunSandbox run={id} finished={fold.state === "finished"} />
        ) : pane === "attempts" ? (
          <Attempts run={id} version={log.fold.saves.length} finished={log.fold.state === "finished"} go={(seq) => settle(address({ at: String(seq) }))} />
        ) : (
          <Evidence fold={fold} />
        )}
      </section>
    </div>
  );
}

/** This address with another pane or moment. */
function address(changes: Record<string, string>): string {
  const next = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) value ? next.set(name, value) : next.delete(name);
  return `${location.pathname}${next.size ? `?${next}` : ""}${location.hash}`;
}

type HeadProps = { log: RunLog; fold: Fold; past: boolean; access: Access | null; share: (() => void) | null; children: ComponentChildren };

function Head({ log, fold, past, access, share, children }: HeadProps) {
  const view = log.view.value!;
  const line = log.stream?.line.value;
  const missing = log.error.value;
  const prompt = fold.request?.prompt ?? view.prompt;
  const last = past ? (log.events.find((event) => event.seq >= fold.last)?.at ?? 0) : 0;
  const seconds = past ? last - fold.began : fold.state === "finished" ? fold.endedAt - fold.began : now.value - (fold.began || view.created_at);
  const row = runs.value?.find((one) => one.id === view.id);
  const over = fold.state === "finished";
  const ended = useLoad(`end:${view.id}:${over && fold.last}`, () => (over ? get<RunView>(path`/v1/runs/${view.id}`) : Promise.resolve(null))).data;
  const isolation = fold.isolation ?? view.isolation;
  const models = [...fold.models].map(modelName);
  return (
    <header class="run-head">
      <div class="run-title">
        <h1 title={shown(prompt).slice(0, 1000)}>{oneLine(prompt, 300)}</h1>
        <Badge standing={standing({ state: fold.pausing && fold.state === "running" ? "paused" : fold.state, outcome: fold.outcome, asks: fold.asks.size + fold.waiting.length })} />
        <span class="run-number">{duration(Math.max(0, seconds))}</span>
        {fold.cost !== null && <span class="run-number">{dollars(fold.cost)}</span>}
      </div>
      <p class="run-facts">
        <span>
          {repoName(fold.request?.repo ?? view.repo)}
          {(fold.branch || view.base_branch) && ` @ ${shown(fold.branch || view.base_branch || "")}`}
        </span>
        <span>asked by {shown(fold.who || view.who)}</span>
        {models.length > 0 && <span>{models.join(", ")}</span>}
        {isolation && <span>{isolation.tier}</span>}
        <code>{view.id}</code>
        {past && <span class="then">as it was at {clock(last)}</span>}
        {!past && fold.state !== "finished" && fold.phase && (
          <span class="busy">
            {fold.phase.name} for {age(now.value - fold.phase.since)}
            {row?.phase === fold.phase.name && usually(row.phase_usual)}
          </span>
        )}
        {!past && fold.state === "queued" && row && <span>{row.ahead ? `${plural(row.ahead, "run")} before it` : "next in the queue"}</span>}
        {!past && ended?.shown_by && (
          <span class="why">
            <a href={`#e${ended.shown_by}`}>why</a>: {oneLine(ended.reason ?? "", 200)}
          </span>
        )}
        {!past && fold.state === "finished" && access !== null && access.role !== "viewer" && <a href={`/new?from=${view.id}`}>run again</a>}
        {access?.projects.map((name) => <span key={name}>project {shown(name)}</span>)}
        {share && (
          <button class="quiet" onClick={share}>
            <Icon name="link" /> Share
          </button>
        )}
        {log.watchers.value.length > 1 && <span>{log.watchers.value.map(shown).join(", ")} watch</span>}
        {missing && (
          <span class="warn" role="status">
            A part of the log is missing: {sentence(missing.why)}
            {missing.retry !== null && ` It is asked for again at ${clock(missing.retry)}.`} <button onClick={log.again}>Now</button>
          </span>
        )}
        {line?.state === "lost" && (
          <span class="warn" role="status">
            Connection lost{line.retry ? `, trying again at ${clock(line.retry / 1000)}` : ""}. What is new follows then.
          </span>
        )}
      </p>
      {children}
    </header>
  );
}
