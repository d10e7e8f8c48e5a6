// The log of one run in the browser: its end first, what is new as it comes, and what is older behind it.

import { effect, signal } from "@preact/signals";
import { ApiError, get, passing, path } from "../api/client";
import type { Delta, Event, RunMessage, RunView } from "../api/records";
import { COMPLETE, Stream } from "../api/stream";
import { runs } from "../overview/live";
import { Fold, fold, Past } from "./fold";

const TAIL = 1_000;
const PAGE = 5_000;
const LIVE_CHARS = 65_536;
const LONGEST_PAUSE = 15;

export class RunLog {
  events: Event[] = [];
  fold = new Fold();
  private earlier = new Past(this.events);
  /** Counts changes of the fold. */
  readonly version = signal(0);
  readonly view = signal<RunView | null>(null);
  /** Why a part of the log is not here, and when it is asked for again: in seconds, or never by itself. */
  readonly error = signal<{ why: unknown; retry: number | null } | null>(null);
  /** How much of the log is here, from 0 to 1. */
  readonly whole = signal(0);
  /** Live text that is not in the log yet: of the model, and of commands by their call. */
  readonly thinking = signal("");
  readonly output = signal<ReadonlyMap<string, string>>(new Map());
  /** Who watches the run now. */
  readonly watchers = signal<readonly string[]>([]);
  stream: Stream | null = null;
  private closed = false;
  private wake: (() => void) | null = null;
  private unfollow = (): void => undefined;
  private drawing = false;
  private text = "";
  private readonly printed = new Map<string, string>();

  constructor(readonly run: string) {
    addEventListener("online", this.again);
    void this.open();
  }

  close(): void {
    this.closed = true;
    this.stream?.close();
    this.unfollow();
    removeEventListener("online", this.again);
    this.again();
  }

  /** Asks at once for what could not be fetched. */
  readonly again = (): void => this.wake?.();

  private async open(): Promise<void> {
    try {
      const view = await this.fetched(() => get<RunView>(path`/v1/runs/${this.run}`));
      this.view.value = view;
      const tail = path`/v1/runs/${view.id}/events?limit=${TAIL}` + `&after=${Math.max(0, view.last_seq - TAIL)}`;
      this.events = await this.fetched(() => get<Event[]>(tail));
      if (this.closed) return;
      this.refold();
      this.stream = new Stream(
        () => path`/v1/runs/${view.id}/stream?after=${this.events.at(-1)?.seq ?? 0}`,
        (message) => this.receive(message as RunMessage),
      );
      this.unfollow = this.reopen(this.stream, view.id);
      await this.fill(view.id);
    } catch (error) {
      this.error.value = { why: error, retry: null };
    }
  }

  /** What the server answers in the end: while it fails that is said, and asked again with growing pauses. */
  private async fetched<T>(what: () => Promise<T>): Promise<T> {
    for (let pause = 0.5; ; pause = Math.min(LONGEST_PAUSE, pause * 2)) {
      try {
        const found = await what();
        this.error.value = null;
        return found;
      } catch (error) {
        if (this.closed || !(error instanceof ApiError && passing(error))) throw error;
        this.error.value = { why: error, retry: Date.now() / 1000 + pause };
        await new Promise<void>((done) => {
          const timer = setTimeout(done, pause * 1000);
          this.wake = () => (clearTimeout(timer), done());
        });
        this.wake = null;
        if (this.closed) throw error;
      }
    }
  }

  /** The stream of a finished run is complete. What is said to the run later continues it, which the list of runs tells. */
  private reopen(stream: Stream, run: string): () => void {
    let tried = 0;
    return effect(() => {
      const line = stream.line.value;
      const row = runs.value?.find((one) => one.id === run);
      if (!row || line.state !== "ended" || line.code !== COMPLETE) return;
      if (row.last_seq <= Math.max(tried, this.events.at(-1)?.seq ?? 0)) return;
      tried = row.last_seq;
      stream.connect();
    });
  }

  /** Fetches what is older, from the beginning on, and puts it before what is here. */
  private async fill(run: string): Promise<void> {
    const first = this.events[0]?.seq ?? 1;
    const older: Event[] = [];
    while (!this.closed && older.length < first - 1) {
      const after = older.at(-1)?.seq ?? 0;
      const limit = Math.min(PAGE, first - 1 - older.length);
      const page = await this.fetched(() => get<Event[]>(path`/v1/runs/${run}/events?after=${after}&limit=${limit}`));
      if (!page.length) break;
      older.push(...page);
      this.whole.value = older.length / Math.max(1, first + TAIL);
    }
    if (this.closed) return;
    if (older.length) {
      this.events = older.concat(this.events);
      this.refold();
    }
    this.whole.value = 1;
  }

  /**
   * The fold as it is now, as a new object each time. The fold itself grows in place, and a part of the page that is
   * given the same object again may not be drawn again: its buttons would show what was true before.
   */
  now(): Fold {
    return Object.create(this.fold) as Fold;
  }

  /** The run as it looked when `seq` was its last event. */
  past(seq: number): Fold {
    return this.earlier.at(seq);
  }

  private refold(): void {
    this.fold = fold(this.events);
    this.earlier = new Past(this.events);
    this.version.value++;
  }

  private receive(message: RunMessage): void {
    switch (message.type) {
      case "event":
        if (message.event.seq <= (this.events.at(-1)?.seq ?? 0)) return;
        this.events.push(message.event);
        this.fold.push(message.event);
        this.settle(message.event);
        break;
      case "delta":
        this.live(message.delta);
        break;
      case "watchers":
        this.watchers.value = message.watchers;
        break;
      case "done": // what this page asks for it asks over HTTP, which answers
      case "error":
      case "end":
        return;
      default:
        message satisfies never;
    }
    this.draw();
  }

  /** An event takes the place of the live text before it. */
  private settle({ body }: Event): void {
    if (body.type === "ModelReplied" || body.type === "ModelFailed") this.text = "";
    else if (body.type === "ToolReturned") this.printed.delete(body.call);
    else if (body.type === "ChecksRan" || body.type === "ProofTaken" || body.type === "BaselineTaken") this.printed.clear();
  }

  private live(delta: Delta): void {
    if (delta.type === "ModelText") this.text = (this.text + delta.text).slice(-LIVE_CHARS);
    else if (delta.type === "CommandOutput") {
      this.printed.set(delta.source, ((this.printed.get(delta.source) ?? "") + delta.text).slice(-LIVE_CHARS));
    }
  }

  /** Many messages make one drawing. */
  private draw(): void {
    if (this.drawing) return;
    this.drawing = true;
    setTimeout(() => {
      this.drawing = false;
      this.thinking.value = this.text;
      this.output.value = new Map(this.printed);
      this.version.value++;
    }, 50);
  }
}
