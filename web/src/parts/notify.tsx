// Notifications of the browser: that a run ended, asks or is stuck. Shown while the page is not looked at.

import { signal } from "@preact/signals";
import { me } from "../api/client";
import type { RunRow } from "../api/records";
import { go } from "../router";
import { oneLine } from "../text/format";

const CHOICES = ["off", "my runs", "all runs"] as const;
type Choice = (typeof CHOICES)[number];
const KEY = "cloister-notify";

const stored = localStorage.getItem(KEY);
export const choice = signal<Choice>(CHOICES.find((one) => one === stored) ?? "off");
const allowed = () => "Notification" in window && Notification.permission === "granted";

async function choose(wanted: Choice): Promise<void> {
  if (wanted !== "off" && !allowed() && (await Notification.requestPermission()) !== "granted") wanted = "off";
  choice.value = wanted;
  localStorage.setItem(KEY, wanted);
}

/** Where a person chooses. Browsers offer notifications to pages over https and of this machine only. */
export function Notify() {
  if (!("Notification" in window)) return null;
  return (
    <label class="notify">
      Notify me of{" "}
      <select value={choice.value} onChange={(event) => void choose(event.currentTarget.value as Choice)}>
        {CHOICES.map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
    </label>
  );
}

/** What is new about a run, in a few words; empty if it is nothing to be called for. */
export function news(before: RunRow, row: RunRow): string {
  if (row.state === "finished" && before.state !== "finished") return `ended: ${row.outcome ?? "done"}`;
  const known = new Set([...before.approvals.map((one) => one.ask), ...before.questions.map((one) => one.question)]);
  const ask = row.approvals.find((one) => !known.has(one.ask));
  if (ask) return `asks for permission: ${oneLine(ask.action, 120)}`;
  const question = row.questions.find((one) => !known.has(one.question));
  if (question) return `asks: ${oneLine(question.text, 120)}`;
  return row.stuck !== null && row.stuck !== before.stuck ? "is stuck" : "";
}

/** Compares a row with the one before, and calls the person if there is a reason to. */
export function noticed(before: RunRow | undefined, row: RunRow): void {
  if (!before || choice.value === "off" || !allowed() || (document.hasFocus() && !document.hidden)) return;
  if (choice.value === "my runs" && row.who !== me.value?.name) return;
  const what = news(before, row);
  if (!what) return;
  // Plain text: a browser reads no markup in it. The tag replaces the one before of the same run.
  try {
    const shown = new Notification(oneLine(row.prompt, 80), { body: what, tag: row.id });
    shown.onclick = () => {
      window.focus();
      go(`/runs/${row.id}`);
      shown.close();
    };
  } catch {
    // Browsers of phones show them only from a service worker.
  }
}
