// The log of one run in the browser: its end first, what is new as it comes, and what is older behind it.

import { signal } from "@preact/signals";
import { ApiError, get, path } from "../api/client";
import type { Delta, Event, RunView } from "../api/records";
import { Stream } from "../api/stream";
import { Fold, fold } from "./fold";

const TAIL = 1_000;
const PAGE = 5_000;
const LIVE_CHARS = 65_536;

type Message = { event?: Event; delta?: Delta; watchers?: string[]; error?: { code: string; message: string } };

export class RunLog {
  events: Event[] = [];
  fold = new Fold();
  /** Counts changes of the fold. */
  readonly version = signal(0);
  readonly view = signal<RunView | null>(null);
  readonly error = signal<unknown>(null);
  readonly refused = signal<ApiError | null>(null);
  /** How much of the log is here, from 0 to 1. */
  readonly whole = signal(0);
  /** Live text that is not in the log yet: of the model, and of commands by their call. */
  readonly thinking = signal("");
  readonly output = signal<ReadonlyMap<string, string>>(new Map());
  /** Who watches the run now. */
  readonly watchers = signal<readonly string[]>([]);
  stream: Stream | null = null;
  private closed = false;
  private drawing = false;
  private text = "";
  private readonly printed = new Map<string, string>();

  constructor(readonly run: string) {
    void this.open();
  }

  close(): void {
    this.closed = true;
    this.stream?.close();
  }

  private async open(): Promise<void> {
    try {
      const view = await get<RunView>(path`/v1/runs/${this.run}`);
      this.view.value = view;
      this.events = await get<Event[]>(path`/v1/runs/${view.id}/events?limit=${TAIL}` + `&after=${Math.max(0, view.last_seq - TAIL)}`);
      if (this.closed) return;
      this.refold();
      this.stream = new Stream(
        () => path`/v1/runs/${view.id}/stream?after=${this.events.at(-1)?.seq ?? 0}`,
        (message) => this.receive(message as Message),
      );
      await this.fill(view.id);
    } catch (error) {
      this.error.value = error;
    }
  }

  /** Fetches what is older, from the beginning on, and puts it before what is here. */
  private async fill(run: string): Promise<void> {
    const first = this.events[0]?.seq ?? 1;
    const older: Event[] = [];
    while (!this.closed && older.length < first - 1) {
      const after = older.at(-1)?.seq ?? 0;
      const page = await get<Event[]>(path`/v1/runs/${run}/events?after=${after}&limit=${Math.min(PAGE, first - 1 - older.length)}`);
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

  private refold(): void {
    this.fold = fold(this.events);
    this.version.value++;
  }

  private receive(message: Message): void {
    if (message.event) {
      const last = this.events.at(-1)?.seq ?? 0;
      if (message.event.seq <= last) return;
      this.events.push(message.event);
      this.fold.push(message.event);
      this.settle(message.event);
    } else if (message.delta) this.live(message.delta);
    else if (message.watchers) this.watchers.value = message.watchers;
    else if (message.error) this.refused.value = new ApiError(400, message.error.code, message.error.message);
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
