// Pictures and text files for a prompt: dropped, pasted or chosen, and sent before it.

import { useEffect, useRef, useState } from "preact/hooks";
import { path, put } from "../api/client";
import type { Attachment } from "../api/records";
import { bytes, shown } from "../text/format";
import { Icon } from "./icons";

const MOST = 8;
const MOST_BYTES = 3_932_160;

type Given = { file: Attachment; preview: string };

export type Attaching = {
  files: Attachment[];
  busy: boolean;
  add: (files: Iterable<File> | null | undefined) => void;
  clear: () => void;
  /** For the field of the prompt. */
  field: {
    onPaste: (event: ClipboardEvent) => void;
    onDragOver: (event: DragEvent) => void;
    onDrop: (event: DragEvent) => void;
  };
  list: preact.JSX.Element | null;
  button: preact.JSX.Element;
};

export function useAttachments(fail: (error: unknown) => void, changed: () => void = () => undefined): Attaching {
  const [given, setGiven] = useState<Given[]>([]);
  const [sending, setSending] = useState(0);
  const all = useRef(given);
  all.current = given;
  useEffect(() => () => all.current.forEach((one) => one.preview && URL.revokeObjectURL(one.preview)), []);
  const clear = () => {
    given.forEach((one) => one.preview && URL.revokeObjectURL(one.preview));
    setGiven([]);
  };
  const add = (files: Iterable<File> | null | undefined) => {
    for (const file of files ?? []) {
      if (file.size > MOST_BYTES) {
        fail(new Error(`${file.name} is too large: at most ${bytes(MOST_BYTES)} can be attached.`));
        continue;
      }
      setSending((before) => before + 1);
      put<Attachment>(path`/v1/attachments?name=${file.name || "pasted"}`, file)
        .then((made) => {
          changed();
          const preview = made.media_type === "text/plain" ? "" : URL.createObjectURL(file);
          setGiven((before) => [...before.filter((one) => one.file.sha256 !== made.sha256), { file: made, preview }].slice(-MOST));
        }, fail)
        .finally(() => setSending((before) => before - 1));
    }
  };
  const remove = (sha: string) => {
    changed();
    setGiven((before) => before.filter((one) => one.file.sha256 !== sha));
  };
  const list =
    given.length || sending ? (
      <ul class="attached" aria-label="Attachments">
        {given.map(({ file, preview }) => (
          <li key={file.sha256}>
            {preview ? <img src={preview} alt="" /> : <Icon name="file" />}
            <span title={shown(file.name)}>{shown(file.name)}</span>
            <span class="dim">{bytes(file.size)}</span>
            <button type="button" class="quiet" aria-label={`Leave out ${file.name}`} onClick={() => remove(file.sha256)}>
              <Icon name="cross" />
            </button>
          </li>
        ))}
        {sending > 0 && <li class="dim" role="status">Sending…</li>}
      </ul>
    ) : null;
  return {
    files: given.map((one) => one.file),
    busy: sending > 0,
    add,
    clear,
    field: {
      onPaste: (event) => {
        if (event.clipboardData?.files.length) {
          event.preventDefault();
          add(event.clipboardData.files);
        }
      },
      onDragOver: (event) => event.preventDefault(),
      onDrop: (event) => {
        if (!event.dataTransfer?.files.length) return;
        event.preventDefault();
        add(event.dataTransfer.files);
      },
    },
    list,
    button: (
      <label class="button attach" title="Attach a picture or a log file">
        <Icon name="clip" />
        <span class="hidden">Attach a picture or a log file</span>
        <input
          type="file"
          multiple
          class="hidden"
          onChange={(event) => {
            add(event.currentTarget.files);
            event.currentTarget.value = "";
          }}
        />
      </label>
    ),
  };
}

/** What was attached to a prompt of a run. */
export function AttachmentList({ run, files }: { run: string; files: Attachment[] }) {
  if (!files.length) return null;
  return (
    <ul class="attached" aria-label="Attachments">
      {files.map((file) => {
        const address = path`/v1/runs/${run}/attachments/${file.sha256}`;
        return (
          <li key={file.sha256}>
            <a href={address} target="_blank" rel="noreferrer" download={file.media_type === "text/plain" ? file.name : undefined}>
              {file.media_type === "text/plain" ? <Icon name="file" /> : <img src={address} alt={shown(file.name)} loading="lazy" />}
              <span>{shown(file.name)}</span>
            </a>
            <span class="dim">{bytes(file.size)}</span>
          </li>
        );
      })}
    </ul>
  );
}
