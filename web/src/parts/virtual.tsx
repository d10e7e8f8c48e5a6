// A list of any length, of which only the visible rows exist. It stays at its end if the reader is there, and rows that
// arrive before the first one do not move what is read.

import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef } from "preact/hooks";

type Props<T> = {
  items: readonly T[];
  keyOf: (item: T) => string;
  estimate: (item: T) => number;
  render: (item: T, index: number) => ComponentChildren;
  label: string;
  /** Where to begin and go: an index, or the end. */
  target: { index: number | "end"; turn: number };
  onEnd?: (atEnd: boolean) => void;
  /** The first visible row, told when the reader moves. */
  onMove?: (index: number) => void;
};

const NEAR = 48;

export function Virtual<T>({ items, keyOf, estimate, render, label, target, onEnd, onMove }: Props<T>) {
  const scroller = useRef<HTMLDivElement>(null);
  const [, draw] = useReducer((turn: number) => turn + 1, 0);
  const stuck = useRef(target.index === "end");
  const before = useRef("");
  const list = useRef<Virtualizer<HTMLDivElement, HTMLDivElement> | null>(null);
  const options = {
    count: items.length,
    getScrollElement: () => scroller.current,
    estimateSize: (index: number) => estimate(items[index]!),
    getItemKey: (index: number) => keyOf(items[index]!),
    overscan: 8,
    observeElementRect,
    observeElementOffset,
    scrollToFn: elementScroll,
    onChange: () => draw(undefined),
  };
  list.current ??= new Virtualizer<HTMLDivElement, HTMLDivElement>(options);
  const virtual = list.current;
  // The row that is read keeps its place when rows arrive above it.
  const firstKey = items.length ? keyOf(items[0]!) : "";
  const moved = before.current !== firstKey && !stuck.current ? readRow(virtual, scroller.current) : null;
  before.current = firstKey;
  virtual.setOptions(options);

  useLayoutEffect(() => virtual._didMount(), []);
  useLayoutEffect(() => virtual._willUpdate());

  const size = virtual.getTotalSize();
  useLayoutEffect(() => {
    const at = moved ? items.findIndex((item) => keyOf(item) === moved.key) : -1;
    if (!moved || at < 0) return;
    virtual.getTotalSize(); // places the rows again that were measured in this drawing
    virtual.scrollToOffset(virtual.measurementsCache[at]!.start - moved.start);
  }, [firstKey]);

  useLayoutEffect(() => {
    if (stuck.current && scroller.current) scroller.current.scrollTop = scroller.current.scrollHeight;
  }, [size, items.length]);

  useEffect(() => {
    const { index } = target;
    stuck.current = index === "end";
    if (index === "end") virtual.scrollToIndex(Math.max(0, items.length - 1), { align: "end" });
    else virtual.scrollToIndex(index, { align: "start" });
  }, [target.turn]);

  const rows = virtual.getVirtualItems();
  return (
    <div
      class="virtual"
      ref={scroller}
      tabIndex={0}
      role="log"
      aria-live="off"
      aria-label={label}
      onScroll={(event) => {
        const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
        const atEnd = scrollTop + clientHeight >= scrollHeight - NEAR;
        if (atEnd !== stuck.current) {
          stuck.current = atEnd;
          onEnd?.(atEnd);
        }
        const first = virtual.getVirtualItemForOffset(scrollTop + 8);
        if (first) onMove?.(first.index);
      }}
    >
      <div style={{ height: `${size}px`, position: "relative" }}>
        {rows.map((row) => (
          <div
            key={row.key}
            data-index={row.index}
            ref={(element) => {
              if (element) virtual.measureElement(element);
            }}
            class="virtual-row"
            style={{ transform: `translateY(${row.start}px)` }}
          >
            {items[row.index] !== undefined && render(items[row.index]!, row.index)}
          </div>
        ))}
      </div>
    </div>
  );
}

/** The first row that is visible, and where it starts from the upper edge. */
function readRow(virtual: Virtualizer<HTMLDivElement, HTMLDivElement>, scroller: HTMLDivElement | null): { key: unknown; start: number } | null {
  const row = scroller && virtual.getVirtualItemForOffset(scroller.scrollTop);
  return row ? { key: row.key, start: row.start - scroller.scrollTop } : null;
}
