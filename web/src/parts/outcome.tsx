// How a run stands, as a word with a colour and a shape of its own: colour alone says nothing.

import type { RunRow } from "../api/records";
import { Icon, type IconName } from "./icons";

export type Standing = { word: string; tone: Tone; icon: IconName };
export type Tone = "good" | "ok" | "warn" | "bad" | "busy" | "idle";

const OUTCOMES: Record<NonNullable<RunRow["outcome"]>, Standing> = {
  proven: { word: "proven", tone: "good", icon: "check" },
  green: { word: "green", tone: "good", icon: "check" },
  unbroken: { word: "unbroken", tone: "ok", icon: "shield" },
  unproven: { word: "unproven", tone: "warn", icon: "question" },
  red: { word: "red", tone: "bad", icon: "cross" },
  budget: { word: "budget spent", tone: "warn", icon: "wallet" },
  stopped: { word: "stopped", tone: "idle", icon: "stop" },
  failed: { word: "failed", tone: "bad", icon: "warn" },
};

export function standing(row: Pick<RunRow, "state" | "outcome"> & { asks?: number; interrupted?: boolean }): Standing {
  if (row.asks) return { word: "asks you", tone: "warn", icon: "question" };
  switch (row.state) {
    case "finished":
      return row.outcome ? OUTCOMES[row.outcome] : { word: "finished", tone: "idle", icon: "flag" };
    case "queued":
      return { word: "queued", tone: "idle", icon: "clock" };
    case "paused":
      return { word: "paused", tone: "warn", icon: "pause" };
    case "running":
      return row.interrupted
        ? { word: "interrupted", tone: "warn", icon: "pause" }
        : { word: "running", tone: "busy", icon: "dot" };
  }
}

export function Badge({ standing: { word, tone, icon } }: { standing: Standing }) {
  return (
    <span class={`badge ${tone}`}>
      <Icon name={icon} />
      {word}
    </span>
  );
}

/** Failing tests after each check, as bars: red shrinks to nothing, and nothing is drawn green. */
export function Spark({ reds, wide = false }: { reds: number[]; wide?: boolean }) {
  if (!reds.length) return <span class="spark" />;
  const most = Math.max(1, ...reds);
  const shownReds = wide ? reds : reds.slice(-12);
  const step = wide ? Math.max(4, Math.min(28, 300 / shownReds.length)) : 5;
  const height = wide ? 56 : 16;
  const label = `failing: ${shownReds.slice(-12).join(", then ")}`;
  return (
    <svg class={wide ? "spark wide" : "spark"} role="img" aria-label={label} width={shownReds.length * step} height={height}>
      <title>{label}</title>
      {shownReds.map((red, at) => {
        const tall = red ? Math.max(3, (red / most) * height) : 3;
        return (
          <rect key={at} x={at * step} y={height - tall} width={step - (step > 8 ? 3 : 1)} height={tall} class={red ? "red" : "green"} />
        );
      })}
    </svg>
  );
}
