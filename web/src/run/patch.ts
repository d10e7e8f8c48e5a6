// A unified diff as files, parts and lines. The text is untrusted: what is not a diff is left out.

export type PatchLine = { kind: "same" | "added" | "removed"; old: number | null; now: number | null; text: string };
export type Part = { head: string; lines: PatchLine[] };
export type PatchFile = { path: string; was: string; status: "modified" | "added" | "deleted" | "renamed"; binary: boolean; added: number; removed: number; parts: Part[] };
export type Pair = { left: PatchLine | null; right: PatchLine | null };

const HEAD = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)$/;

export function parse(text: string): PatchFile[] {
  const files: PatchFile[] = [];
  let file: PatchFile | undefined;
  let part: Part | undefined;
  let old = 0;
  let now = 0;
  for (const line of text.split("\n")) {
    if (line.startsWith("diff --git ")) {
      file = { path: named(line), was: "", status: "modified", binary: false, added: 0, removed: 0, parts: [] };
      part = undefined;
      files.push(file);
    } else if (!file) continue;
    else if (!part || line.startsWith("@@")) {
      const head = HEAD.exec(line);
      if (head) {
        old = Number(head[1]);
        now = Number(head[2]);
        part = { head: head[3] ?? "", lines: [] };
        file.parts.push(part);
      } else header(file, line);
    } else if (line.startsWith("+")) {
      part.lines.push({ kind: "added", old: null, now: now++, text: line.slice(1) });
      file.added++;
    } else if (line.startsWith("-")) {
      part.lines.push({ kind: "removed", old: old++, now: null, text: line.slice(1) });
      file.removed++;
    } else if (line.startsWith(" ")) part.lines.push({ kind: "same", old: old++, now: now++, text: line.slice(1) });
  }
  return files;
}

/** The name of the first line of a file: the same twice, unless it is a rename, which names both again. */
function named(line: string): string {
  const rest = line.slice(11);
  const quoted = / ("b\/(?:[^"\\]|\\.)*")$/.exec(rest)?.[1];
  if (quoted) return plain(quoted).slice(2);
  const size = (rest.length - 5) / 2;
  return Number.isInteger(size) && rest.slice(2, 2 + size) === rest.slice(size + 5) ? rest.slice(size + 5) : rest;
}

const MARKS: Record<string, string> = { a: "\x07", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t", v: "\v" };

/** A name as git writes it, maybe with a tab behind it: with odd characters it is in quotes, and its bytes may be octal numbers. */
function plain(written: string): string {
  const name = written.replace(/\t$/, "");
  const quoted = /^"(.*)"$/s.exec(name)?.[1];
  if (quoted === undefined) return name;
  const bytes: number[] = [];
  for (const [text, mark] of quoted.matchAll(/\\(\d{3}|.)|[^\\]+/gs)) {
    if (mark === undefined) bytes.push(...new TextEncoder().encode(text));
    else bytes.push(mark.length === 3 ? parseInt(mark, 8) : (MARKS[mark] ?? mark).charCodeAt(0));
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

function header(file: PatchFile, line: string): void {
  if (line.startsWith("new file")) file.status = "added";
  else if (line.startsWith("deleted file")) file.status = "deleted";
  else if (line.startsWith("rename from ")) [file.was, file.status] = [plain(line.slice(12)), "renamed"];
  else if (line.startsWith("rename to ")) file.path = plain(line.slice(10));
  else if (line.startsWith("Binary files") || line.startsWith("GIT binary patch")) file.binary = true;
  else if (/^\+\+\+ "?b\//.test(line)) file.path = plain(line.slice(4)).slice(2);
}

/** Removed lines beside the added ones that took their place. */
export function pairs(lines: readonly PatchLine[]): Pair[] {
  const found: Pair[] = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at]!;
    if (line.kind === "same") {
      found.push({ left: line, right: line });
      at++;
      continue;
    }
    const removed: PatchLine[] = [];
    const added: PatchLine[] = [];
    while (lines[at]?.kind === "removed") removed.push(lines[at++]!);
    while (lines[at]?.kind === "added") added.push(lines[at++]!);
    for (let row = 0; row < Math.max(removed.length, added.length); row++) {
      found.push({ left: removed[row] ?? null, right: added[row] ?? null });
    }
  }
  return found;
}

/** The part of two lines that differs: how many characters are the same at the beginning and at the end. */
export function differing(one: string, other: string): [number, number] | null {
  const most = Math.min(one.length, other.length, 2_000);
  let head = 0;
  while (head < most && one[head] === other[head]) head++;
  let tail = 0;
  while (tail < most - head && one[one.length - 1 - tail] === other[other.length - 1 - tail]) tail++;
  return head + tail < most * 0.3 ? null : [head, tail];
}
