// The change by file, side by side or in one column. A comment on a line goes back to the agent as a prompt.

import { useSignal } from "@preact/signals";
import { Fragment } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { getText, path } from "../api/client";
import { Icon } from "../parts/icons";
import { useLoad } from "../parts/load";
import { Failed } from "../parts/notes";
import { narrow } from "../router";
import { count, plural, shown } from "../text/format";
import { differing, pairs, parse, type PatchFile, type PatchLine } from "./patch";

export type Comment = { path: string; line: number; side: "old" | "now"; code: string; text: string };
/** `version` changes when the diff may have. */
type Props = { run: string; at: number | null; version: number; comment: ((comments: Comment[]) => Promise<void>) | null };

const FILE_LINES = 1_500;
/** So many files begin open, as long as they have so many changed lines together; so many more are named at a time. */
const OPEN_FILES = 50;
const OPEN_LINES = 5_000;
const FILES = 200;
const LINE_CHARS = 1_000;

export function Diff({ run, at, version, comment }: Props) {
  const { data, error, again } = useLoad(
    `${run}:${version}:${at}`,
    () => (at === 0 ? Promise.resolve("") : getText(path`/v1/runs/${run}/diff` + (at === null ? "" : `?at=${at}`))),
    0,
    `${run}:${at !== null}`,
  );
  const files = useMemo(() => (data === null ? [] : parse(data)), [data]);
  const [wanted, setSplit] = useState(() => localStorage.getItem("diff") === "split");
  const split = wanted && !narrow.value;
  const comments = useSignal<Comment[]>([]);
  // What is being written stays when a line moves to another place of the diff.
  const drafts = useRef(new Map<string, string>());
  const [most, setMost] = useState(FILES);
  const [failure, setFailure] = useState<unknown>(null);
  useEffect(() => localStorage.setItem("diff", wanted ? "split" : "one"), [wanted]);
  if (error && data === null) return <Failed error={error} again={again} />;
  if (data === null) return <p class="dim pad">Fetching the diff…</p>;
  if (!files.length) return <p class="dim pad">Nothing has changed so far.</p>;
  const added = files.reduce((sum, file) => sum + file.added, 0);
  const removed = files.reduce((sum, file) => sum + file.removed, 0);
  let lines = 0;
  return (
    <div class={split ? "diff split" : "diff"}>
      <div class="diff-bar">
        <span>
          {plural(files.length, "file")} <span class="good">+{count(added)}</span> <span class="bad">−{count(removed)}</span>
        </span>
        {!narrow.value && (
          <span class="choice" role="group" aria-label="Layout of the diff">
            <button aria-pressed={!split} onClick={() => setSplit(false)}>One column</button>
            <button aria-pressed={split} onClick={() => setSplit(true)}>Side by side</button>
          </span>
        )}
      </div>
      {failure !== null && <Failed error={failure} />}
      {error !== null && <Failed error={error} again={again} />}
      {comment && comments.value.length > 0 && (
        <div class="diff-bar review">
          <span>{plural(comments.value.length, "comment")} not sent yet</span>
          <button
            class="main"
            onClick={() =>
              comment(comments.value).then(
                () => (comments.value = []),
                (reason: unknown) => setFailure(reason),
              )
            }
          >
            Send to the agent
          </button>
        </div>
      )}
      {files.slice(0, most).map((file, index) => (
        <FileDiff
          key={file.path}
          file={file}
          begins={index < OPEN_FILES && file.added + file.removed <= FILE_LINES && (lines += file.added + file.removed) <= OPEN_LINES}
          drafts={drafts.current}
          split={split}
          comments={comments.value.filter((one) => one.path === file.path)}
          add={comment && ((made) => (comments.value = [...comments.value, made]))}
          drop={(gone) => (comments.value = comments.value.filter((one) => one !== gone))}
        />
      ))}
      {files.length > most && (
        <p class="pad">
          <button onClick={() => setMost(most + FILES)}>{count(Math.min(FILES, files.length - most))} more files</button>{" "}
          <span class="dim">of {count(files.length - most)}</span>
        </p>
      )}
    </div>
  );
}

type FileProps = { file: PatchFile; begins: boolean; drafts: Map<string, string>; split: boolean; comments: Comment[]; add: ((made: Comment) => void) | null; drop: (gone: Comment) => void };

/** A line by its side and number, which stay when the diff comes again. */
const placeOf = (line: PatchLine | null) => (line ? (line.now ? `now ${line.now}` : `old ${line.old}`) : "");

function FileDiff({ file, begins, drafts, split, comments, add, drop }: FileProps) {
  const [open, setOpen] = useState(begins);
  const [writing, setWriting] = useState("");
  const columns = split ? 4 : 3;
  const under = (line: PatchLine | null) => {
    if (!line) return null;
    const about = comments.filter((one) => one.line === (line.now ?? line.old) && one.side === (line.now ? "now" : "old"));
    return (
      <>
        {about.map((one, at) => (
          <tr class="comment" key={at}>
            <td colSpan={columns}>
              <p>{shown(one.text)}</p>
              <button class="quiet" aria-label="Delete this comment" onClick={() => drop(one)}>
                <Icon name="cross" />
              </button>
            </td>
          </tr>
        ))}
        {writing === placeOf(line) && add && (
          <tr class="comment">
            <td colSpan={columns}>
              <Write
                drafts={drafts}
                place={`${placeOf(line)} ${file.path}`}
                done={(text) => {
                  if (text) add({ path: file.path, line: line.now ?? line.old ?? 0, side: line.now ? "now" : "old", code: line.text, text });
                  setWriting("");
                }}
              />
            </td>
          </tr>
        )}
      </>
    );
  };
  const number = (line: PatchLine | null, which: "old" | "now") => {
    const value = line?.[which];
    if (value == null) return <td class="number" />;
    if (!add) return <td class="number">{value}</td>;
    return (
      <td class="number">
        <button aria-label={`Comment on line ${value} of ${file.path}`} onClick={() => setWriting(placeOf(line))}>
          {value}
        </button>
      </td>
    );
  };
  return (
    <section class="file">
      <h2 class="small">
        <button class="fold" aria-expanded={open} onClick={() => setOpen(!open)}>
          <Icon name="chevron" class={open ? "turned" : ""} />
          <span class="name">
            {file.was && `${shown(file.was)} → `}
            {shown(file.path)}
          </span>
          {file.status !== "modified" && <span class="tag">{file.status}</span>}
          <span class="good">+{file.added}</span> <span class="bad">−{file.removed}</span>
        </button>
      </h2>
      {open && file.binary && <p class="dim pad">A binary file.</p>}
      {open &&
        file.parts.map((part, at) => (
          <table key={at} class="code" tabIndex={0} aria-label={`Part ${at + 1} of ${file.path}`}>
            {part.head && (
              <caption>{shown(part.head)}</caption>
            )}
            <tbody>
              {split
                ? pairs(part.lines.slice(0, FILE_LINES)).map((pair) => {
                    const range = pair.left && pair.right && pair.left !== pair.right ? differing(pair.left.text, pair.right.text) : null;
                    return (
                      <Fragment key={placeOf(pair.right ?? pair.left)}>
                        <tr>
                          {number(pair.left, "old")}
                          <Code line={pair.left} range={range} />
                          {number(pair.right, "now")}
                          <Code line={pair.right} range={range} />
                        </tr>
                        {pair.left !== pair.right && under(pair.left)}
                        {under(pair.right)}
                      </Fragment>
                    );
                  })
                : part.lines.slice(0, FILE_LINES).map((line) => (
                    <Fragment key={placeOf(line)}>
                      <tr>
                        {line.kind === "added" ? <td class="number" /> : number(line, "old")}
                        {number(line, "now")}
                        <Code line={line} range={null} />
                      </tr>
                      {under(line)}
                    </Fragment>
                  ))}
            </tbody>
          </table>
        ))}
      {open && file.parts.some((part) => part.lines.length > FILE_LINES) && (
        <p class="dim pad">Only the first {count(FILE_LINES)} lines of each part are shown.</p>
      )}
    </section>
  );
}

const SIGNS = { same: " ", added: "+", removed: "−" } as const;

function Code({ line, range }: { line: PatchLine | null; range: [number, number] | null }) {
  if (!line) return <td class="code-none" />;
  const text = line.text.length > LINE_CHARS ? `${line.text.slice(0, LINE_CHARS)} … ${line.text.length - LINE_CHARS} more characters` : line.text;
  const cut = range && line.kind !== "same" && text === line.text;
  return (
    <td class={`code-${line.kind}`}>
      <span class="sign">{SIGNS[line.kind]}</span>
      {cut ? (
        <>
          {shown(text.slice(0, range[0]))}
          <mark>{shown(text.slice(range[0], text.length - range[1]))}</mark>
          {shown(text.slice(text.length - range[1]))}
        </>
      ) : (
        shown(text)
      )}
    </td>
  );
}

function Write({ drafts, place, done: close }: { drafts: Map<string, string>; place: string; done: (text: string) => void }) {
  const [text, setText] = useState(drafts.get(place) ?? "");
  const field = useRef<HTMLTextAreaElement>(null);
  // Before the next key: what one types at once belongs here, and is no key of the page.
  useLayoutEffect(() => {
    if (!drafts.has(place) || document.activeElement === document.body) field.current?.focus();
  }, []);
  const done = (given: string) => {
    drafts.delete(place);
    close(given);
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        done(text.trim());
      }}
    >
      <textarea
        aria-label="Comment"
        placeholder="What should be different here?"
        ref={field}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          drafts.set(place, event.currentTarget.value);
        }}
        onKeyDown={(event) => {
          if (event.key === "Escape") done("");
          if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) done(text.trim());
        }}
      />
      <button class="main">Add comment</button>
      <button type="button" onClick={() => done("")}>Cancel</button>
    </form>
  );
}

/** The comments as one prompt, each with its place and the line that it is about. */
export function asPrompt(comments: readonly Comment[]): string {
  // A name with a line break would look like words of the person.
  const name = (given: string) => (/[\u0000-\u001f]/.test(given) ? JSON.stringify(given) : given);
  const each = comments.map((one) => `${name(one.path)}:${one.line}${one.side === "old" ? " (a removed line)" : ""}\n> ${one.code.trim().slice(0, 300)}\n${one.text}`);
  return `Comments on the diff:\n\n${each.join("\n\n")}`;
}
