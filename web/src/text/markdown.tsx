// Text of models and people as Markdown. The parser and the sanitiser are loaded with the first text that needs them.

import { signal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { shown } from "./format";

const render = signal<((text: string) => string) | null>(null);
let asked = false;
const NEEDED = /[*_`#[\]<>|~]|\n/;

function load(): void {
  if (asked) return;
  asked = true;
  void import("./html").then((module) => {
    render.value = module.toHtml;
  });
}

export function Markdown({ text }: { text: string }) {
  const plain = !NEEDED.test(text);
  if (!plain) load();
  const make = plain ? null : render.value;
  const html = useMemo(() => make?.(shown(text)), [make, text]);
  if (html === undefined) return <p class="markdown plain">{shown(text)}</p>;
  return <div class="markdown" dangerouslySetInnerHTML={{ __html: html }} />;
}
