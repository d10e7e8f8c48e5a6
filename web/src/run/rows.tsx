// The rows of the timeline: one line each, opened to what is behind it.

import type { ComponentChildren } from "preact";
import { AttachmentList } from "../parts/attach";
import { Icon, type IconName } from "../parts/icons";
import { Badge, standing } from "../parts/outcome";
import { Markdown } from "../text/markdown";
import { clock, dollars, duration, modelName, now, oneLine, plural, shown } from "../text/format";
import type { Ask, Call, Checks, End, Note, Question, Row, Said, Turn } from "./fold";
import { Output } from "./output";
import { QuestionLine } from "./question";

export type Shown = {
  open: ReadonlySet<string>;
  toggle: (key: string) => void;
  live: ReadonlyMap<string, string>;
  hold: ((question: string) => void) | null;
  several: boolean;
  past: boolean;
};

export function RowView({ row, show }: { row: Row; show: Shown }) {
  switch (row.kind) {
    case "note":
      return <NoteRow row={row} show={show} />;
    case "said":
      return <SaidRow row={row} />;
    case "turn":
      return <TurnRow row={row} show={show} />;
    case "call":
      return <CallRow row={row} show={show} />;
    case "checks":
      return <ChecksRow row={row} show={show} />;
    case "ask":
      return row.answer || show.past ? <AskRow row={row} answer={null} /> : <Waits row={row} what={row.ask.action} />;
    case "question":
      if (!row.by && !row.over && !show.past) return <Waits row={row} what={row.asked.text} />;
      return <QuestionRow row={row} hold={show.hold} />;
    case "end":
      return <EndRow row={row} />;
  }
}

export function estimate(row: Row): number {
  switch (row.kind) {
    case "turn":
      return row.text ? 64 : 36;
    case "said":
    case "question":
      return 72;
    case "end":
    case "ask":
      return 110;
    default:
      return 30;
  }
}

function Seq({ row }: { row: { seq: number; at: number } }) {
  return (
    <a class="seq" href={`#e${row.seq}`} title={`${clock(row.at)}, event ${row.seq}`} aria-label={`Event ${row.seq}`}>
      #{row.seq}
    </a>
  );
}

type FoldProps = { row: Row; show: Shown; icon: IconName; tone: string; line: ComponentChildren; end?: ComponentChildren; children?: ComponentChildren };

/** One line with a button that opens what is behind it. */
function Folded({ row, show, icon, tone, line, end, children }: FoldProps) {
  const open = show.open.has(row.key);
  return (
    <div class={`row ${row.kind} ${tone}`}>
      <div class="row-line">
        {children ? (
          <button class="fold" aria-expanded={open} onClick={() => show.toggle(row.key)}>
            <Icon name="chevron" class={open ? "turned" : ""} />
            <Icon name={icon} />
            <span class="row-text">{line}</span>
          </button>
        ) : (
          <span class="fold">
            <Icon name={icon} class="alone" />
            <span class="row-text">{line}</span>
          </span>
        )}
        <span class="row-end">{end}</span>
        <Seq row={row} />
      </div>
      {open && <div class="row-more">{children}</div>}
    </div>
  );
}

function NoteRow({ row, show }: { row: Note; show: Shown }) {
  return (
    <Folded row={row} show={show} icon={row.icon} tone={row.tone} line={shown(row.text)}>
      {row.more && row.more.trim() !== row.text.trim() ? <pre tabIndex={0}>{shown(row.more)}</pre> : null}
    </Folded>
  );
}

function SaidRow({ row }: { row: Said }) {
  return (
    <div class="row said">
      <div class="row-line">
        <span class="fold who">
          <Icon name="say" class="alone" />
          {shown(row.who)}
          {!row.mine && <span class="tag">words of others</span>}
        </span>
        <Seq row={row} />
      </div>
      <Markdown text={row.text} />
      <AttachmentList run={row.run} files={row.files} />
    </div>
  );
}

function TurnRow({ row, show }: { row: Turn; show: Shown }) {
  const shut = show.open.has(row.key);
  const moved = row.red !== null && row.red !== row.was;
  return (
    <div class="row turn">
      <div class="row-line">
        <button class="fold" aria-expanded={!shut} onClick={() => show.toggle(row.key)}>
          <Icon name="chevron" class={shut ? "" : "turned"} />
          <strong>
            {show.several && `attempt ${row.attempt} · `}turn {row.step}
          </strong>
          <span class="row-text dim">{shut ? `${row.calls.join(", ")}  ${oneLine(row.text, 120)}` : ""}</span>
        </button>
        <span class="row-end">
          {moved && (
            <span class={row.red ? "redness bad" : "redness good"}>
              {row.was !== null && `${row.was} → `}
              {row.red} red
            </span>
          )}
          <span title={modelName(row.model)}>{duration(row.seconds)}</span>
          {row.cost ? <span>{dollars(row.cost)}</span> : null}
        </span>
        <Seq row={row} />
      </div>
      {!shut && row.text && <Markdown text={row.text} />}
    </div>
  );
}

const CALL_ICONS: Record<string, IconName> = { bash: "terminal", read: "file", write: "edit", edit: "edit", search: "search", recall: "clock", finish: "flag", ask: "question" };
const STATES: Record<Call["state"], [IconName, string]> = { waits: ["clock", "waits"], runs: ["dot", "runs"], ok: ["check", "ok"], failed: ["cross", "failed"], lost: ["back", "runs again"] };

function object(row: Call): string {
  const given = row.call.arguments;
  const told = given["command"] ?? given["path"] ?? given["pattern"] ?? given["summary"] ?? given["question"] ?? Object.values(given)[0];
  return typeof told === "string" ? told : JSON.stringify(given);
}

function CallRow({ row, show }: { row: Call; show: Shown }) {
  const live = show.live.get(row.call.id) ?? "";
  const [icon, word] = STATES[row.state];
  const tone = row.state === "failed" ? "bad" : row.state === "runs" ? "busy" : "dim";
  return (
    <Folded
      row={row}
      show={show}
      icon={CALL_ICONS[row.call.name] ?? "dot"}
      tone={tone}
      line={
        <>
          <span class="verb">{shown(row.call.name)}</span> <code>{oneLine(object(row), 300)}</code>
        </>
      }
      end={
        <>
          {row.effect === "deny" && <span class="redness bad">denied</span>}
          {row.exit ? <span class="bad">exit {row.exit}</span> : null}
          {row.seconds !== null && <span>{duration(row.seconds)}</span>}
          <span class={`state ${row.state}`} title={word}>
            <Icon name={icon} />
            <span class="hidden">{word}</span>
          </span>
        </>
      }
    >
      <Given row={row} />
      <AttachmentList run={row.run} files={row.pictures} />
      {row.rule && (
        <p class="rule">
          <Icon name="shield" /> {row.effect}: {shown(row.rule)}
        </p>
      )}
      {row.text || live ? <Output text={row.text || live} live={!row.text} /> : row.state === "runs" ? <p class="dim">No output yet.</p> : null}
    </Folded>
  );
}

/** The whole of what a tool was called with. */
function Given({ row }: { row: Call }) {
  const given = Object.entries(row.call.arguments);
  if (row.call.name === "bash") return <pre class="given" tabIndex={0}>$ {shown(object(row))}</pre>;
  return (
    <dl class="given">
      {given.map(([name, value]) => (
        <div key={name}>
          <dt>{shown(name)}</dt>
          <dd>
            <pre tabIndex={0}>{shown(typeof value === "string" ? value : JSON.stringify(value, null, 1)).slice(0, 20_000)}</pre>
          </dd>
        </div>
      ))}
    </dl>
  );
}

function ChecksRow({ row, show }: { row: Checks; show: Shown }) {
  const red = row.diagnoses.reduce((sum, one) => sum + one.tests.filter((test) => test.status === "failed" || test.status === "error").length, 0);
  const green = row.diagnoses.reduce((sum, one) => sum + one.unlisted + one.tests.filter((test) => test.status === "passed").length, 0);
  const broken = row.diagnoses.filter((one) => one.exit_code !== 0 || one.killed || one.not_run).length;
  const name = row.attempt < 0 ? "baseline" : row.proof ? "proof in a fresh sandbox" : "checks";
  const fixed = row.comparison?.fixed.length ?? 0;
  const good = row.attempt >= 0 && row.comparison?.green;
  return (
    <Folded
      row={row}
      show={show}
      icon={good ? "check" : red || broken ? "cross" : "check"}
      tone={good ? "good" : row.attempt < 0 ? "plain" : red || broken ? "bad" : "plain"}
      line={
        <>
          <strong>{name}</strong>  {red} red, {green} green{fixed > 0 && row.attempt >= 0 ? `, ${fixed} fixed` : ""}
        </>
      }
      end={duration(row.diagnoses.reduce((sum, one) => sum + one.seconds, 0))}
    >
      {row.diagnoses.map((one, at) => (
        <div key={at}>
          <p>
            <code>{shown(one.check)}</code> {one.not_run ? shown(one.not_run) : one.killed ? `was ended: ${one.killed}` : `exit ${one.exit_code}`}
          </p>
          {one.tests
            .filter((test) => test.status === "failed" || test.status === "error")
            .slice(0, 50)
            .map((test) => (
              <details key={test.name}>
                <summary class="bad">{shown(test.name)}</summary>
                <Output text={[test.message, test.source].filter(Boolean).join("\n\n")} />
              </details>
            ))}
          {!one.tests.length && one.tail && <Output text={one.tail} />}
        </div>
      ))}
    </Folded>
  );
}

/** What waits for a person stands above the timeline; here is its place. */
function Waits({ row, what }: { row: Ask | Question; what: string }) {
  return (
    <div class="row ask open">
      <div class="row-line">
        <span class="fold">
          <Icon name="question" class="alone" />
          <strong>asks you</strong>
          <span class="row-text">{oneLine(what, 300)}</span>
        </span>
        <Seq row={row} />
      </div>
    </div>
  );
}

type AskProps = { row: Ask; answer: ((ask: string, answer: "allow" | "deny") => void) | null; approves?: boolean };

/** Who may steer may deny; not everyone of them may allow. */
export function AskRow({ row, answer, approves = false }: AskProps) {
  const { ask } = row;
  const left = ask.deadline - now.value;
  return (
    <div class={`row ask ${row.answer ? "answered" : "open"}`}>
      <div class="row-line">
        <span class="fold">
          <Icon name="question" class="alone" />
          <strong>{row.answer ? "asked" : "asks you"}</strong>
          <code class="row-text">{oneLine(ask.action, 300)}</code>
        </span>
        <Seq row={row} />
      </div>
      {ask.detail && ask.detail !== ask.action && <pre tabIndex={0}>{shown(ask.detail)}</pre>}
      {row.answer ? (
        <p class="dim">
          {row.answer === "allow" ? "Allowed" : "Denied"} by {shown(row.by)}
        </p>
      ) : (
        <p class="answers">
          {answer && (
            <>
              {approves && (
                <button class="good" onClick={() => answer(ask.ask, "allow")}>
                  Allow <kbd>a</kbd>
                </button>
              )}
              <button class="bad" onClick={() => answer(ask.ask, "deny")}>
                Deny <kbd>d</kbd>
              </button>
            </>
          )}
          <span class="dim">
            {ask.rule && `${shown(ask.rule)} · `}
            {left > 0 ? `${ask.default === "deny" ? "denied" : "allowed"} in ${duration(left)} without an answer` : "the time is up"}
          </span>
        </p>
      )}
    </div>
  );
}

function QuestionRow({ row, hold }: { row: Question; hold: Shown["hold"] }) {
  const waits = !row.by && !row.over;
  return (
    <div class={`row ask ${waits ? "open" : "answered"}`}>
      <div class="row-line">
        <span class="fold">
          <Icon name="question" class="alone" />
          <strong>{waits ? "asks you" : "asked"}</strong>
          <span class="row-text">{oneLine(row.asked.text, 300)}</span>
        </span>
        <Seq row={row} />
      </div>
      <QuestionLine row={{ ...row }} hold={hold} />
    </div>
  );
}

function EndRow({ row }: { row: End }) {
  return (
    <div class="row end">
      <div class="row-line">
        <Badge standing={standing({ state: "finished", outcome: row.outcome })} />
        <span class="row-text" />
        <Seq row={row} />
      </div>
      <Markdown text={row.reason} />
      <AttachmentList run={row.run} files={row.pictures} />
    </div>
  );
}

/** What a search or a count says about the rows of a list. */
export function counted(rows: readonly Row[]): string {
  return plural(rows.filter((row) => row.kind === "turn").length, "turn");
}
