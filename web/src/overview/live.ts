// All runs as they change: one stream for the list, the frame and the search.

import { signal } from "@preact/signals";
import type { RunRow } from "../api/records";
import { Stream } from "../api/stream";
import { noticed } from "../parts/notify";

const FIRST = 500;

type Message = { type: "run"; run: RunRow } | { type: "synced"; cursor: number } | { type: "sandboxes" | "error" | "end" };

/** The newest runs, newest first; null until the first of them came. */
export const runs = signal<readonly RunRow[] | null>(null);
export let overview: Stream | null = null;

const known = new Map<string, RunRow>();
let cursor: number | null = null;

/** Begins to follow, once per page. */
export function follow(): void {
  overview ??= new Stream(
    () => (cursor === null ? `/v1/stream?last=${FIRST}` : `/v1/stream?after=${cursor}`),
    (given) => {
      const message = given as Message;
      if (message.type === "run") {
        noticed(known.get(message.run.id), message.run);
        known.set(message.run.id, message.run);
      }
      else if (message.type === "synced") {
        cursor = message.cursor;
        runs.value = [...known.values()].sort((one, other) => other.created_at - one.created_at);
      }
    },
  );
}
