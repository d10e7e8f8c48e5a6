// Numbers and names as people read them.

import { signal } from "@preact/signals";

/** The time, once a second: what shows an age reads it. */
export const now = signal(Date.now() / 1000);
setInterval(() => {
  if (!document.hidden) now.value = Date.now() / 1000;
}, 1000);

export function duration(seconds: number): string {
  if (seconds < 0.095) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds < 600 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d`;
}

/** How long ago, in one unit. */
export function age(seconds: number): string {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

export function dollars(cost: number | null | undefined): string {
  if (cost == null) return "";
  if (cost > 0 && cost < 0.01) return "<$0.01";
  return `$${cost.toFixed(2)}`;
}

export function bytes(count: number): string {
  let value = count;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return `${unit === "B" || value >= 100 ? Math.round(value) : value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return "";
}

export function count(value: number): string {
  return value.toLocaleString("en");
}

export function plural(value: number, word: string): string {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

export function clock(at: number): string {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function date(at: number): string {
  return new Date(at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
}

/** The name of a repository: the last two parts of its address. */
export function repoName(repo: string): string {
  return shown(repo.replace(/\.git$/, "").replace(/\/+$/, "").split(/[/:]/).slice(-2).join("/"));
}

export function modelName(model: string): string {
  return model.startsWith("script:") ? "scripted model" : shown(model);
}

// Controls, marks that turn the direction of text, and those without a width: text of others cannot hide with them.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\u{e0000}|[\u{e0020}-\u{e007f}]/gu;

/** Untrusted text with every character visible. */
export function shown(text: string): string {
  return text.replace(UNSEEN, (mark) => `⟨${mark.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** The first line of untrusted text, cut. */
export function oneLine(text: string, limit = 200): string {
  const first = text.trimStart().split("\n", 1)[0] ?? "";
  return shown(first.length > limit ? `${first.slice(0, limit)}…` : first);
}
