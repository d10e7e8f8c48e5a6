// WebSockets that come back: a lost connection is said, retried with growing pauses, and resumed where it ended.

import { signal } from "@preact/signals";
import { loggedOut } from "./client";

export type Line = { state: "open" } | { state: "lost"; retry: number } | { state: "ended"; code: number };

/** There is nothing more now; later there may be. */
export const COMPLETE = 1000;
const ENDED = new Set([COMPLETE, 4400, 4401, 4403, 4404]);
const LONGEST_PAUSE = 15;

export class Stream {
  readonly line = signal<Line>({ state: "lost", retry: 0 });
  private socket: WebSocket | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private pause = 0.5;
  private closed = false;

  /** `address` is asked before each connection, because it says where to continue. */
  constructor(
    private readonly address: () => string,
    private readonly receive: (message: unknown) => void,
  ) {
    this.connect();
    addEventListener("online", this.connect);
  }

  send(message: unknown): boolean {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  close(): void {
    this.closed = true;
    clearTimeout(this.timer);
    removeEventListener("online", this.connect);
    this.socket?.close();
  }

  /** Connects at once: what is lost comes back sooner, and what was complete may have more. */
  readonly connect = (): void => {
    clearTimeout(this.timer);
    if (this.closed || this.socket) return;
    const socket = new WebSocket(this.address().replace(/^/, location.origin.replace(/^http/, "ws")));
    this.socket = socket;
    socket.onopen = () => {
      this.pause = 0.5;
      this.line.value = { state: "open" };
    };
    socket.onmessage = (message) => this.receive(JSON.parse(message.data as string));
    socket.onclose = (event) => {
      this.socket = null;
      if (this.closed) return;
      if (ENDED.has(event.code)) {
        if (event.code === 4401) loggedOut.value = "This login has ended.";
        this.line.value = { state: "ended", code: event.code };
        return;
      }
      this.line.value = { state: "lost", retry: Date.now() + this.pause * 1000 };
      this.timer = setTimeout(this.connect, this.pause * 1000);
      this.pause = Math.min(LONGEST_PAUSE, this.pause * 2);
    };
  };
}
