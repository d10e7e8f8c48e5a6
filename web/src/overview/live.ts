// All runs as they change: one stream for the list, the frame and the search.

import { signal } from "@preact/signals";
import type { OverviewMessage, RunRow } from "../api/records";
import { get } from "../api/client";
import { Stream } from "../api/stream";
import { noticed } from "../parts/notify";

const FIRST = 500;

/** The newest runs, newest first; null until the first of them came. */
export const runs = signal<readonly RunRow[] | null>(null);
export let overview: Stream | null = null;

const known = new Map<string, RunRow>();
let cursor: number | null = null;

/** Whether the server may have runs that are older than all of these. */
export const more = signal(true);

/** Fetches older runs into the list. */
export async function older(): Promise<void> {
  const last = runs.value?.at(-1);
  if (!last) return;
  const found = await get<RunRow[]>(`/v1/runs?limit=${FIRST}&before=${last.id}`);
  for (const row of found) if (!known.has(row.id)) known.set(row.id, row);
  more.value = found.length === FIRST;
  list();
}

function list(): void {
  runs.value = [...known.values()].sort((one, other) => other.created_at - one.created_at);
}

/** Begins to follow, once per page. */
export function follow(): void {
  overview ??= new Stream(
    () => (cursor === null ? `/v1/stream?last=${FIRST}` : `/v1/stream?after=${cursor}`),
    (given) => {
      const message = given as OverviewMessage;
      switch (message.type) {
        case "run":
          noticed(known.get(message.run.id), message.run);
          known.set(message.run.id, message.run);
          return;
        case "synced":
          cursor = message.cursor;
          if (known.size < FIRST) more.value = false;
          return list();
        case "sandboxes": // their page asks for itself
        case "error":
        case "end":
          return;
        default:
          message satisfies never;
      }
    },
  );
}
