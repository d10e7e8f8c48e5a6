// A run as its log tells it: every element of the page is folded from events, so that the page can show any moment of it.

import type { Attachment,
  AskRaised,
  Body,
  ChangeMade,
  ChecksRan,
  Comparison,
  Diagnosis,
  Event,
  Isolation,
  NewRun,
  ProofTaken,
  QuestionAsked,
  RunRow,
  ToolCall,
} from "../api/records";
import { count, duration, modelName, oneLine, plural, repoName } from "../text/format";

export type Tone = "plain" | "dim" | "good" | "warn" | "bad";
export type Note = { kind: "note"; key: string; seq: number; at: number; tone: Tone; icon: "dot" | "check" | "cross" | "warn" | "flag" | "globe" | "fork" | "clock" | "plan"; text: string; more: string };
export type Said = { kind: "said"; key: string; seq: number; at: number; who: string; text: string; mine: boolean; run: string; files: Attachment[] };
export type Turn = {
  kind: "turn"; key: string; seq: number; at: number; attempt: number; step: number; model: string; seconds: number;
  cost: number | null; tokens: number; text: string; save: number | null; changed: boolean; red: number | null; was: number | null; calls: string[];
};
export type Call = {
  kind: "call"; key: string; seq: number; at: number; attempt: number; call: ToolCall; effect: string; rule: string;
  state: "waits" | "runs" | "ok" | "failed" | "lost"; text: string; seconds: number | null; exit: number | null;
  run: string; pictures: Attachment[];
};
export type Checks = { kind: "checks"; key: string; seq: number; at: number; attempt: number; proof: boolean; comparison: Comparison | null; diagnoses: Diagnosis[] };
export type Ask = { kind: "ask"; key: string; seq: number; at: number; ask: AskRaised; answer: string; by: string };
export type Question = {
  kind: "question"; key: string; seq: number; at: number; asked: QuestionAsked; answer: string;
  /** Who gave the first answer, or `deadline`; who answered after that; whether the run has ended. */
  by: string; later: string; over: boolean;
};
export type End = { kind: "end"; key: string; seq: number; at: number; outcome: NonNullable<RunRow["outcome"]>; reason: string; run: string; pictures: Attachment[] };
export type Row = Note | Said | Turn | Call | Checks | Ask | Question | End;

export type Spent = { model: string; attempt: number | null; step: number | null; input: number; output: number; cost: number | null; seconds: number; estimated: boolean };

/** The first and the last picture of each page, named by when they were taken. */
function beforeAndAfter(taken: Attachment[]): Attachment[] {
  const pages = new Map<string, Attachment[]>();
  for (const one of taken) pages.set(one.name, [...(pages.get(one.name) ?? []), one]);
  return [...pages.values()].flatMap((all) => {
    const first = all[0];
    const last = all[all.length - 1];
    if (!first || !last || first.sha256 === last.sha256) return all.slice(0, 1);
    return [{ ...first, name: `before: ${first.name}` }, { ...last, name: `after: ${last.name}` }];
  });
}

/** What a person asked for, and how far it came. */
export class Fold {
  readonly rows: Row[] = [];
  request: NewRun | null = null;
  who = "";
  began = 0;
  state: RunRow["state"] = "queued";
  outcome: RunRow["outcome"] = null;
  reason = "";
  phase: { name: string; since: number } | null = null;
  branch = "";
  checks: string[] = [];
  isolation: Isolation | null = null;
  baseline: Checks | null = null;
  evidence: Checks | null = null;
  change: ChangeMade | null = null;
  changed = 0;
  pullRequest = "";
  deliveredTo = "";
  plan = "";
  reds: number[] = [];
  models = new Set<string>();
  spent: Spent[] = [];
  asks = new Map<string, Ask>();
  questions = new Map<string, Question>();
  saves: Array<{ seq: number; attempt: number; step: number; red: number | null }> = [];
  stopping = false;
  pausing = false;
  last = 0;
  endedAt = 0;
  private readonly calls = new Map<string, Call>();
  /** What the tools of each attempt took. */
  private readonly pictures = new Map<number, Attachment[]>();
  private readonly turns = new Map<number, Turn>();
  private readonly red = new Map<number, number>();

  /** The same, which other events can continue. Rows that no event changes any more are shared. */
  copy(): Fold {
    const made = new Fold();
    const again = new Map<Row, Row>();
    const own = <Key, Changing extends Row>(map: ReadonlyMap<Key, Changing>): Map<Key, Changing> =>
      new Map([...map].map(([key, row]) => (again.set(row, { ...row }), [key, again.get(row) as Changing])));
    Object.assign(made, this, {
      calls: own(this.calls), turns: own(this.turns), asks: own(this.asks), questions: own(this.questions),
      reds: [...this.reds], spent: [...this.spent], saves: [...this.saves], models: new Set(this.models),
      pictures: new Map(this.pictures), red: new Map(this.red), rows: [],
    });
    for (const row of this.rows) made.rows.push(again.get(row) ?? row);
    return made;
  }

  push(event: Event): void {
    this.last = event.seq;
    this.take(event, event.body);
  }

  get cost(): number | null {
    const known = this.spent.filter((one) => one.cost !== null);
    return known.length ? known.reduce((sum, one) => sum + one.cost!, 0) : null;
  }

  /** Questions of the model that no one has answered. */
  get waiting(): Question[] {
    return [...this.questions.values()].filter((one) => !one.by && !one.over);
  }

  get tokens(): number {
    return this.spent.reduce((sum, one) => sum + one.input + one.output, 0);
  }

  private note(event: Event, text: string, tone: Tone = "dim", icon: Note["icon"] = "dot", more = ""): void {
    this.rows.push({ kind: "note", key: `n${event.seq}`, seq: event.seq, at: event.at, tone, icon, text, more });
  }

  private patch(event: Event, body: Extract<Body, { type: "PatchFound" }>): void {
    const broken = body.broke ?? [];
    const doubt = broken.length ? `it breaks ${plural(broken.length, "test")}` : oneLine(body.concern ?? "");
    const text = `A patch makes ${plural(body.fixed.length, "test")} green: ${oneLine(body.rule)} in ${body.path}:${body.line}`;
    const more = broken.length ? `${body.diff}\nIt breaks:\n${broken.join("\n")}` : body.diff;
    this.note(event, doubt ? `${text}, but ${doubt}` : text, broken.length ? "dim" : doubt ? "warn" : "good", broken.length ? "cross" : doubt ? "warn" : "check", more);
  }

  private take(event: Event, body: Body): void {
    const { seq, at } = event;
    switch (body.type) {
      case "RunAdmitted":
        this.request = body.request;
        this.who = body.who;
        this.began = at;
        this.rows.push({ kind: "said", key: `n${seq}`, seq, at, who: body.who, text: body.request.prompt, mine: true, run: event.run, files: body.request.attachments ?? [] });
        return;
      case "RunClaimed":
        if (body.epoch > 1) this.note(event, "The server began again and goes on from the last save point.", "warn", "clock");
        this.state = "running";
        this.phase = null;
        return;
      case "RunResumed":
        for (const call of this.calls.values()) if (call.state === "waits" || call.state === "runs") call.state = "lost";
        return;
      case "RunPaused":
        this.state = "paused";
        this.reason = body.reason;
        return this.note(event, `Paused: ${oneLine(body.reason)}`, "warn", "clock");
      case "RunContinued":
        this.state = "queued";
        this.outcome = null;
        return this.note(event, `${body.who} continued the run`, "dim", "flag");
      case "PhaseStarted":
        this.phase = { name: body.phase, since: at };
        return;
      case "PhaseEnded":
        this.phase = this.phase?.name === body.phase ? null : this.phase;
        if (body.seconds >= 1) this.note(event, `${body.phase}  ${duration(body.seconds)}`, "dim", "check");
        return;
      case "BaseFixed":
        this.branch = body.branch ?? body.commit.slice(0, 10);
        if (body.note) this.note(event, body.note, "warn", "warn");
        return;
      case "EnvironmentPrepared":
        return this.note(
          event,
          body.problem ? `Set-up failed: ${oneLine(body.problem)}` : `Environment ready  ${duration(body.seconds)}`,
          body.problem ? "warn" : "dim",
          body.problem ? "warn" : "check",
          [body.problem, ...body.plan].filter(Boolean).join("\n"),
        );
      case "InstructionsGiven":
        this.note(event, `${body.kind} from ${oneLine(body.path)}`);
        return;
      case "SkillsPinned":
        if (body.skills.length) this.note(event, `Skills  ${oneLine(body.skills.map((one) => one.name).join(", "))}`);
        for (const problem of body.problems) this.note(event, oneLine(problem), "warn", "warn");
        return;
      case "Delegated":
        this.note(event, `Helper ${body.attempt} of attempt ${body.parent}: ${oneLine(body.task)}`);
        return;
      case "DelegationEnded":
        this.note(event, `Helper ${body.attempt} ${body.outcome}: ${oneLine(body.report)}`);
        return;
      case "NoteProposed":
        this.note(event, `Note ${body.written ? "written" : "proposed"}: ${oneLine(body.text)}`);
        return;
      case "ToolsOffered":
        if (body.tools.length) this.note(event, `Tools  ${oneLine(body.tools.map((one) => one.name).join(", "))}`);
        for (const problem of body.problems) this.note(event, oneLine(problem), "warn", "warn");
        return;
      case "ServiceFailed":
        return this.note(event, `A service did not start: ${oneLine(body.problem)}`, "warn", "warn", body.problem);
      case "SandboxOpened":
        this.isolation = body.isolation;
        return;
      case "ChecksChosen":
        this.checks = body.checks;
        return;
      case "BaselineTaken":
        this.baseline = { kind: "checks", key: `n${seq}`, seq, at, attempt: -1, proof: false, comparison: body.comparison, diagnoses: body.diagnoses };
        this.reds.unshift(reds(body.diagnoses));
        this.rows.push(this.baseline);
        return;
      default:
        this.takeWork(event, body);
    }
  }

  private takeWork(event: Event, body: Body): void {
    const { seq, at } = event;
    switch (body.type) {
      case "AttemptStarted":
        if (body.model) this.models.add(body.model);
        if (body.attempt > 0) this.note(event, `Attempt ${body.attempt} starts with ${modelName(body.model || body.harness)}`, "dim", "fork");
        return;
      case "AttemptForked":
        return this.note(event, `Attempt ${body.attempt} continues attempt ${body.parent} from #${body.at_seq}: ${oneLine(body.reason)}`, "plain", "fork");
      case "PromptReceived":
        this.answered(body.ref, body.text, body.who);
        this.rows.push({ kind: "said", key: `n${seq}`, seq, at, who: body.who, text: body.text, mine: body.origin === "user", run: event.run, files: body.attachments ?? [] });
        return;
      case "ModelReplied": {
        this.models.add(body.model);
        this.spend(body.model, body.attempt, body.step, body.usage.input_tokens, body.usage.output_tokens, body.cost, body.seconds);
        const turn: Turn = {
          kind: "turn", key: `n${seq}`, seq, at, attempt: body.attempt, step: body.step, model: body.model, seconds: body.seconds, cost: body.cost,
          tokens: body.usage.input_tokens + body.usage.output_tokens, text: body.text, save: null, changed: false,
          red: null, was: this.red.get(body.attempt) ?? null, calls: body.calls.map((call) => call.name),
        };
        this.turns.set(body.attempt, turn);
        this.rows.push(turn);
        for (const call of body.calls) {
          const row: Call = {
            kind: "call", key: `c${seq}.${call.id}`, seq, at, attempt: body.attempt, call, effect: "", rule: "", state: "waits", text: "", seconds: null, exit: null,
            run: event.run, pictures: [],
          };
          this.calls.set(`${body.attempt}/${call.id}`, row);
          this.rows.push(row);
        }
        return;
      }
      case "ActionDecided": {
        const call = this.calls.get(`${body.attempt}/${body.call}`);
        if (!call) return;
        call.seq = seq;
        call.effect = body.effect;
        call.rule = body.rule;
        call.state = body.effect === "allow" ? "runs" : call.state;
        return;
      }
      case "ToolReturned": {
        const call = this.calls.get(`${body.attempt}/${body.call}`);
        if (!call) return;
        call.seq = seq;
        call.state = body.ok ? "ok" : "failed";
        call.text = body.text;
        call.seconds = body.seconds;
        call.exit = body.exit_code;
        call.pictures = body.pictures;
        this.pictures.set(body.attempt, [...(this.pictures.get(body.attempt) ?? []), ...body.pictures]);
        return;
      }
      case "ChecksRan":
      case "ProofTaken":
        return this.checked(event, body);
      case "TurnEnded": {
        // Until here a call may run again, after a crash.
        for (const key of [...this.calls.keys()]) if (key.startsWith(`${body.attempt}/`)) this.calls.delete(key);
        const turn = this.turns.get(body.attempt);
        const red = this.red.get(body.attempt) ?? null;
        this.saves.push({ seq, attempt: body.attempt, step: body.step, red });
        if (turn) [turn.save, turn.changed] = [seq, body.changed];
        return;
      }
      case "AskRaised": {
        const ask: Ask = { kind: "ask", key: `n${seq}`, seq, at, ask: body, answer: "", by: "" };
        this.asks.set(body.ask, ask);
        this.rows.push(ask);
        return;
      }
      case "AskAnswered": {
        const ask = this.asks.get(body.ask);
        if (ask) [ask.answer, ask.by] = [body.answer, body.who];
        this.asks.delete(body.ask);
        return;
      }
      case "QuestionAsked": {
        const question: Question = { kind: "question", key: `n${seq}`, seq, at, asked: body, answer: "", by: "", later: "", over: false };
        this.questions.set(body.question, question);
        this.rows.push(question);
        return;
      }
      case "QuestionAnswered":
        return this.answered(body.question, body.text, body.who);
      case "Advised":
        if (body.role === "plan") this.plan = body.text;
        if (body.text) this.note(event, `${body.role === "plan" ? "Plan" : body.role === "review" ? "Review" : "Kind of task"}: ${oneLine(body.text)}`, "plain", "plan", body.text);
        return;
      default:
        this.takeRest(event, body);
    }
  }

  private takeRest(event: Event, body: Body): void {
    switch (body.type) {
      case "ModelFailed":
        return this.note(event, `The model failed: ${oneLine(body.message)}`, "bad", "warn", body.message);
      case "ModelSpent":
        this.spend(body.model, body.attempt, null, body.usage.input_tokens, body.usage.output_tokens, body.cost, body.seconds, body.estimated);
        return;
      case "ModelSwitched":
        return this.note(event, `${modelName(body.to_model)} continues: ${oneLine(body.reason)}`, "warn", "dot");
      case "ModelChosen":
        return this.note(event, `${body.who} chose ${modelName(body.model)}`, "plain", "dot");
      case "BudgetWarned":
        return this.note(event, `Most of the budget of ${body.level} is spent: ${budgetWords(body)}`, "warn", "warn");
      case "BudgetSpent":
        return this.note(event, `The budget of ${body.level} is spent: ${budgetWords(body)}`, "bad", "warn");
      case "BudgetExtended":
        return this.note(event, `${body.who} added ${count(body.amount)} ${body.what} to the budget of ${body.level}`, "plain", "dot");
      case "ContextSummarised":
        return this.note(event, `The conversation was summarised: ${count(body.before_tokens)} → ${count(body.after_tokens)} tokens`, "dim", "dot", body.text);
      case "StuckNoticed":
        return this.note(event, `No progress: ${oneLine(body.evidence)}`, "warn", "warn", body.evidence);
      case "SaveRefused":
        return this.note(event, `Not saved: ${oneLine(body.text)}`, "bad", "warn", body.text);
      case "FinishRefused":
        return this.note(event, `Not finished: ${oneLine(body.text)}`, "warn", "cross", body.text);
      case "BaselineSampled":
        return this.note(event, `Before any change ${reds(body.diagnoses)} of the tests the task is about fail; the rest runs`, "dim", "dot");
      case "PagesPictured":
        this.pictures.set(body.attempt, [...(this.pictures.get(body.attempt) ?? []), ...body.before, ...body.after]);
        return this.note(event, `Pictures of ${plural(body.after.length, "page")}, before and after the change`, body.problems?.length ? "warn" : "dim", "dot", body.problems?.join("\n"));
      case "FaultLocalised":
        return this.note(event, `${plural(body.lines, "suspect line")}, found in ${duration(body.seconds)}`, "plain", "plan", body.suspects.map((one) => `${one.path}:${one.line}  ${one.score.toFixed(2)}  ${one.why}`).join("\n"));
      case "CandidatesTried":
        return this.note(event, `${count(body.tried)} of ${count(body.total)} candidates tried, ${count(body.plausible)} plausible`, "dim", "dot");
      case "PatchFound":
        return this.patch(event, body);
      case "PatchChosen":
        return this.note(event, `Chosen: ${oneLine(body.rule)} in ${body.path}`, "plain", "check", body.why);
      case "AttemptEnded":
        if (body.attempt > 0 || this.turns.size > 1) this.note(event, `Attempt ${body.attempt} ended: ${body.outcome}`, "plain", "flag", body.reason);
        return;
      case "JudgeSpoke":
        return this.note(event, `${modelName(body.model)} judged between attempts ${body.tied.join(", ")}: ${body.choice ?? "no choice"}`, "plain", "plan", body.text);
      case "StopRequested":
        this.stopping = true;
        return this.note(event, `${body.who} asked it to stop`, "warn", "flag");
      case "PauseRequested":
        this.pausing = true;
        return this.note(event, `${body.who} paused the run`, "warn", "clock");
      case "ResumeRequested":
        this.pausing = false;
        return this.note(event, `${body.who} let the run go on`, "dim", "flag");
      case "InterruptRequested":
        return this.note(event, `${body.who} stopped the current step`, "warn", "flag");
      case "SandboxUsed":
        return this.note(event, `${body.who} in the sandbox of attempt ${body.attempt}, ${body.how}: ${oneLine(body.what)}`, "warn", "flag", body.what);
      case "RewindRequested":
        return this.note(event, `${body.who} goes back to #${body.to}`, "plain", "fork");
      case "ConnectionDecided":
        return this.note(event, `${body.effect === "allow" ? "Connected to" : "No connection to"} ${oneLine(body.host)}:${body.port}`, body.effect === "allow" ? "dim" : "warn", "globe", body.rule);
      case "RequestDecided":
        if (body.effect === "deny") this.note(event, `Refused: ${body.method} ${oneLine(body.host + body.path)}`, "warn", "globe", body.rule);
        return;
      case "ChangeMade":
        [this.change, this.changed] = [body, event.seq];
        return this.note(event, `Change: ${plural(body.files.length, "file")} on ${body.branch}`, "plain", "flag");
      case "ChangeDelivered":
        this.pullRequest = body.url;
        this.deliveredTo = body.where;
        return this.note(event, body.url ? `Pull request ${body.number}: ${oneLine(body.url)}` : `Delivered to ${repoName(body.where)}`, "good", "flag");
      case "DeliveryFailed":
        return this.note(event, `Not delivered: ${oneLine(body.reason)}`, "bad", "warn", body.reason);
      case "RunFinished":
        this.state = "finished";
        this.outcome = body.outcome;
        this.reason = body.reason;
        this.phase = null;
        if (!body.again) this.endedAt = event.at;
        this.stopping = this.pausing = false;
        this.asks.clear();
        for (const one of this.questions.values()) one.over = true;
        if (!body.again) this.rows.push({
          kind: "end", key: `n${event.seq}`, seq: event.seq, at: event.at, outcome: body.outcome, reason: body.reason,
          run: event.run, pictures: beforeAndAfter(this.pictures.get(body.attempt ?? 0) ?? []),
        });
        return;
      default:
        return; // what only machines read: policies, ranks, inherited parts, sandboxes that close
    }
  }

  /** The first answer counts; what a person says to it after the deadline is a message. */
  private answered(name: string, text: string, who: string): void {
    const question = this.questions.get(name);
    if (question?.by === "deadline") question.later ||= who;
    else if (question && !question.by) [question.answer, question.by] = [text, who];
  }

  private checked(event: Event, body: ChecksRan | ProofTaken): void {
    const red = body.comparison.new.length + body.comparison.still.length + body.comparison.missing.length + body.comparison.skipped.length;
    const turn = this.turns.get(body.attempt);
    if (turn) turn.red = red;
    this.red.set(body.attempt, red);
    if (body.type === "ChecksRan") this.reds.push(red);
    else if (this.reds.at(-1) !== red) this.reds.push(red);
    this.evidence = {
      kind: "checks", key: `n${event.seq}`, seq: event.seq, at: event.at, attempt: body.attempt, proof: body.type === "ProofTaken",
      comparison: body.comparison, diagnoses: body.diagnoses,
    };
    this.rows.push(this.evidence);
  }

  private spend(model: string, attempt: number | null, step: number | null, input: number, output: number, cost: number | null, seconds: number, estimated = false): void {
    this.spent.push({ model, attempt, step, input, output, cost, seconds, estimated });
  }
}

function budgetWords(body: { what: string; spent: number; limit: number }): string {
  return `${count(Math.round(body.spent * 100) / 100)} of ${count(body.limit)} ${body.what}`;
}

/** Failing tests, and checks that fail without a failing test. */
export function reds(diagnoses: Diagnosis[]): number {
  return diagnoses.reduce((sum, one) => {
    const failing = one.tests.filter((test) => test.status === "failed" || test.status === "error").length;
    return sum + (failing || (one.exit_code === 0 && !one.killed && !one.not_run ? 0 : 1));
  }, 0);
}

export function fold(events: readonly Event[]): Fold {
  const made = new Fold();
  for (const event of events) made.push(event);
  return made;
}

/** Any moment of a log, without folding all that is before it each time. */
export class Past {
  private static readonly STEP = 4_000;
  /** After each so many events. */
  private readonly marks = [new Fold()];

  constructor(private readonly events: readonly Event[]) {}

  at(seq: number): Fold {
    const { STEP } = Past;
    const count = Math.max(0, Math.min(this.events.length, seq - (this.events[0]?.seq ?? 1) + 1));
    while (this.marks.length * STEP <= count) {
      const next = this.marks.at(-1)!.copy();
      for (const event of this.events.slice((this.marks.length - 1) * STEP, this.marks.length * STEP)) next.push(event);
      this.marks.push(next);
    }
    const mark = Math.floor(count / STEP);
    const made = this.marks[mark]!.copy();
    for (const event of this.events.slice(mark * STEP, count)) made.push(event);
    return made;
  }
}
