// Keys: a page says what each does, the help lists them, and none works while one types.

import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";

export type Key = { keys: string; does: string; run: () => void };

const held: { current: Key[] }[] = [];
export const known = signal<Key[]>([]);
let first = "";
let since = 0;

function publish(): void {
  known.value = held.flatMap((each) => each.current);
}

/**
 * The keys work from the moment in which their part is on the page: one that is pressed at once must not reach another's.
 * What they run is that of the last render. The help is drawn again only if its words change, as it has keys itself.
 */
export function useKeys(keys: Key[]): void {
  const own = useRef(keys);
  own.current = keys;
  const words = keys.map((key) => `${key.keys} ${key.does}`).join("\n");
  useLayoutEffect(() => {
    held.push(own);
    publish();
    return () => {
      held.splice(held.indexOf(own), 1);
      publish();
    };
  }, [words]);
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
    const found = [...held].reverse().flatMap((each) => each.current);
    const key = found.find((each) => each.keys === pair) ?? found.find((each) => each.keys === pressed);
    first = pressed;
    since = Date.now();
    if (!key) return;
    event.preventDefault();
    since = 0;
    key.run();
  });
}
