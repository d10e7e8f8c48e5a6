// The timeline: the rows of a fold, of which turns can be shut and lines opened, with a place that the address holds.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useKeys } from "../parts/keys";
import { Virtual } from "../parts/virtual";
import { hash, settle } from "../router";
import { plural } from "../text/format";
import { Markdown } from "../text/markdown";
import type { Fold, Row } from "./fold";
import type { RunLog } from "./log";
import { RowView, estimate, type Shown } from "./rows";

type Props = { log: RunLog; fold: Fold; version: number; past: boolean; hold: Shown["hold"] };

export function Timeline({ log, fold, version, past, hold }: Props) {
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const [atEnd, setAtEnd] = useState(!hash.value.startsWith("e"));
  const [target, setTarget] = useState<{ index: number | "end"; turn: number }>({ index: "end", turn: 0 });
  const seen = useRef(0);
  const first = useRef(0);
  const rows = useMemo(() => visible(fold.rows, open), [fold, version, open]);
  const asked = /^e(\d+)$/.exec(hash.value)?.[1];

  // The place of the address, again once the older part of the log is there.
  const placed = useRef("");
  useEffect(() => {
    if (!asked || !rows.length) return;
    const wanted = Number(asked);
    if (placed.current === asked || (rows[0]!.seq > wanted && log.whole.value < 1)) return;
    placed.current = asked;
    const index = rows.findIndex((row) => row.seq >= wanted);
    setTarget((before) => ({ index: index < 0 ? "end" : index, turn: before.turn + 1 }));
    if (index >= 0) setAtEnd(false);
  }, [asked, rows.length > 0, log.whole.value]);

  if (atEnd || !seen.current) seen.current = fold.last;
  const toggle = (key: string) =>
    setOpen((before) => {
      const next = new Set(before);
      if (!next.delete(key)) next.add(key);
      return next;
    });
  const turnTo = (step: 1 | -1) => {
    const turns = rows.map((row, index) => ({ row, index })).filter(({ row }) => row.kind === "turn");
    const next = step > 0 ? turns.find(({ index }) => index > first.current) : turns.findLast(({ index }) => index < first.current);
    if (!next) return;
    placed.current = String(next.row.seq);
    settle(`#e${next.row.seq}`);
    setAtEnd(false);
    setTarget((before) => ({ index: next.index, turn: before.turn + 1 }));
  };
  const toEnd = () => {
    setAtEnd(true);
    setTarget((before) => ({ index: "end", turn: before.turn + 1 }));
  };
  useKeys([
    { keys: "j", does: "next turn", run: () => turnTo(1) },
    { keys: "k", does: "previous turn", run: () => turnTo(-1) },
    { keys: "G", does: "to the end", run: toEnd },
  ]);

  const show: Shown = { open, toggle, live: past ? new Map() : log.output.value, hold: past ? null : hold, several: fold.saves.some((save) => save.attempt > 0), past };
  const thinking = past ? "" : log.thinking.value;
  const fresh = atEnd ? 0 : rows.length - 1 - rows.findLastIndex((row) => row.seq <= seen.current);
  return (
    <div class="timeline">
      <Virtual<Row>
        items={rows}
        keyOf={(row) => row.key}
        estimate={estimate}
        render={(row) => <RowView row={row} show={show} />}
        label="Timeline"
        target={target}
        onEnd={setAtEnd}
        onMove={(index) => (first.current = index)}
      />
      {thinking && (
        <div class="thinking" aria-label="The model writes">
          <Markdown text={thinking} />
        </div>
      )}
      {!atEnd && fresh > 0 && !past && (
        <button class="pill" onClick={toEnd}>
          {plural(fresh, "new line")} ↓
        </button>
      )}
    </div>
  );
}

/** Rows without those of shut turns. A turn in `open` is shut: turns begin open, lines begin folded. */
function visible(rows: readonly Row[], open: ReadonlySet<string>): Row[] {
  const shut = new Map<number, boolean>();
  return rows.filter((row) => {
    if (row.kind === "turn") {
      shut.set(row.attempt, open.has(row.key));
      return true;
    }
    return row.kind !== "call" || !shut.get(row.attempt);
  });
}
