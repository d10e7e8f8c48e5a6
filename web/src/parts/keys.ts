// Keys: a page says what each does, the help lists them, and none works while one types.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

export type Key = { keys: string; does: string; run: () => void };

const held: Key[][] = [];
export const known = signal<Key[]>([]);
let first = "";
let since = 0;

function publish(): void {
  known.value = held.flat();
}

export function useKeys(keys: Key[]): void {
  useEffect(() => {
    held.push(keys);
    publish();
    return () => {
      held.splice(held.indexOf(keys), 1);
      publish();
    };
  });
}

export function typing(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  return !!element?.closest?.("input, textarea, select, [contenteditable], .xterm, dialog");
}

export function startKeys(): void {
  addEventListener("keydown", (event) => {
    const chord = event.metaKey || event.ctrlKey;
    if (event.altKey || (chord && event.key !== "k") || (!chord && typing(event.target))) return;
    const pressed = chord ? "⌘K" : event.key;
    const pair = Date.now() - since < 1200 ? `${first} ${pressed}` : "";
    const found = [...held].reverse().flat();
    const key = found.find((each) => each.keys === pair) ?? found.find((each) => each.keys === pressed);
    first = pressed;
    since = Date.now();
    if (!key) return;
    event.preventDefault();
    since = 0;
    key.run();
  });
}
