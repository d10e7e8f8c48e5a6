// Output of programs: colours become classes, every other control sequence is dropped or made visible.

import { shown } from "./format";

type Style = { fg: string; bg: string; bold: boolean; dim: boolean; italic: boolean; underline: boolean; inverse: boolean };
type Piece = { text: string; style: Style };

const PLAIN: Style = { fg: "", bg: "", bold: false, dim: false, italic: false, underline: false, inverse: false };
// A colour change; any other control sequence, one that sets titles and links, and single escapes.
const SEQUENCE = /\u001b\[([0-9;:]{0,60})m|\u001b\[[0-?]{0,60}[ -/]{0,8}[@-~]|\u001b[\]PX^_][^\u0007\u001b]{0,4096}(?:\u0007|\u001b\\)|\u001b[ -/]{0,8}[0-~]/g;
const LINE_CHARS = 2_000;

function colour(codes: number[], at: number): [string, number] {
  if (codes[at + 1] === 5) {
    const index = codes[at + 2] ?? 0;
    return [index < 16 ? String(index) : "", at + 2];
  }
  return ["", codes[at + 1] === 2 ? at + 4 : at];
}

function restyle(style: Style, given: string): Style {
  const codes = given.split(/[;:]/).map(Number);
  let next = { ...style };
  for (let at = 0; at < codes.length; at++) {
    const code = codes[at]!;
    if (code === 0) next = { ...PLAIN };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.underline = true;
    else if (code === 7) next.inverse = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.underline = false;
    else if (code === 27) next.inverse = false;
    else if (code >= 30 && code <= 37) next.fg = String(code - 30);
    else if (code === 38) [next.fg, at] = colour(codes, at);
    else if (code === 39) next.fg = "";
    else if (code >= 40 && code <= 47) next.bg = String(code - 40);
    else if (code === 48) [next.bg, at] = colour(codes, at);
    else if (code === 49) next.bg = "";
    else if (code >= 90 && code <= 97) next.fg = String(code - 82);
    else if (code >= 100 && code <= 107) next.bg = String(code - 92);
  }
  return next;
}

export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let style = PLAIN;
  let last = 0;
  const add = (part: string) => part && found.push({ text: shown(part), style });
  for (const match of text.matchAll(SEQUENCE)) {
    add(text.slice(last, match.index));
    if (match[1] !== undefined) style = restyle(style, match[1]);
    last = match.index + match[0].length;
  }
  add(text.slice(last));
  return found;
}

/** What a terminal would show of each line: what follows the last return to its beginning. */
function settled(text: string): string {
  return text
    .replace(/\r\n/g, "\n")
    .split("\n")
    .map((line) => {
      const kept = line.slice(line.lastIndexOf("\r") + 1);
      return kept.length > LINE_CHARS ? `${kept.slice(0, LINE_CHARS)} … ${kept.length - LINE_CHARS} more characters` : kept;
    })
    .join("\n");
}

function classes(style: Style): string {
  const names = [style.fg && `fg${style.fg}`, style.bg && `bg${style.bg}`];
  for (const name of ["bold", "dim", "italic", "underline", "inverse"] as const) if (style[name]) names.push(name);
  return names.filter(Boolean).join(" ");
}

export function Ansi({ text }: { text: string }) {
  return (
    <>
      {pieces(settled(text)).map((piece) => {
        const named = classes(piece.style);
        return named ? <span class={named}>{piece.text}</span> : piece.text;
      })}
    </>
  );
}
