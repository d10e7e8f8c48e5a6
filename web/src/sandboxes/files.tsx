// The files of a sandbox: walk, look, fetch, put, delete.

import { useState } from "preact/hooks";
import { ApiError, get, getText, path, send } from "../api/client";
import type { Entry } from "../api/records";
import { Icon } from "../parts/icons";
import { useLoad } from "../parts/load";
import { Failed } from "../parts/notes";
import { bytes, date, shown } from "../text/format";

const LOOK_BYTES = 200_000;

export function Files({ sandbox }: { sandbox: string }) {
  const [at, setAt] = useState("/work");
  const [file, setFile] = useState<string | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const { data, error, again } = useLoad(`${sandbox}:${at}`, () => get<Entry[]>(path`/v1/sandboxes/${sandbox}/files/list?path=${at}`));
  const parts = at.split("/").filter(Boolean);
  const open = (place: string) => (setAt(place || "/"), setFile(null));
  const put = async (files: FileList | null) => {
    setFailure(null);
    for (const one of files ?? []) {
      const response = await fetch(path`/v1/sandboxes/${sandbox}/files?path=${`${at}/${one.name}`}`, { method: "PUT", body: one });
      if (!response.ok) {
        const problem = (await response.json()) as { code: string; message: string };
        setFailure(new ApiError(response.status, problem.code, problem.message));
      }
    }
    again();
  };
  const remove = (entry: Entry) => {
    const place = `${at}/${entry.name}`;
    if (!confirm(`Delete ${shown(place)}${entry.kind === "dir" ? " and everything in it" : ""}?`)) return;
    void send("POST", path`/v1/sandboxes/${sandbox}/files/remove`, { path: place, recursive: entry.kind === "dir" }).then(again, setFailure);
  };
  return (
    <div class="files">
      <p class="crumbs">
        <button class="quiet" onClick={() => open("/")}>/</button>
        {parts.map((part, index) => (
          <button key={index} class="quiet" onClick={() => open(`/${parts.slice(0, index + 1).join("/")}`)}>
            {shown(part)}/
          </button>
        ))}
        <label class="button">
          Put files here
          <input type="file" multiple class="hidden" onChange={(event) => void put(event.currentTarget.files)} />
        </label>
      </p>
      {(failure !== null || error !== null) && <Failed error={failure ?? error} again={again} />}
      <ul class="plain-list">
        {data
          ?.toSorted((one, other) => Number(other.kind === "dir") - Number(one.kind === "dir") || one.name.localeCompare(other.name))
          .slice(0, 2_000)
          .map((entry) => (
            <li key={entry.name} class="file-line">
              <button class="quiet name" onClick={() => (entry.kind === "dir" ? open(`${at === "/" ? "" : at}/${entry.name}`) : setFile(`${at}/${entry.name}`))}>
                <Icon name={entry.kind === "dir" ? "layers" : "file"} /> {shown(entry.name)}
              </button>
              <span class="dim right">{entry.kind === "file" ? bytes(entry.size) : entry.kind}</span>
              <time class="dim">{date(entry.modified)}</time>
              <button class="quiet" aria-label={`Delete ${entry.name}`} onClick={() => remove(entry)}>
                <Icon name="cross" />
              </button>
            </li>
          ))}
        {data?.length === 0 && <li class="dim pad">Nothing is in this directory.</li>}
      </ul>
      {file && <Look sandbox={sandbox} file={file} />}
    </div>
  );
}

function Look({ sandbox, file }: { sandbox: string; file: string }) {
  const { data, error } = useLoad(`${sandbox}:${file}`, () => getText(path`/v1/sandboxes/${sandbox}/files?path=${file}&limit=${LOOK_BYTES}`));
  return (
    <section>
      <h2 class="small">
        {shown(file)} <a href={path`/v1/sandboxes/${sandbox}/files?path=${file}`} download={file.split("/").pop()}>Download</a>
      </h2>
      {error !== null && <Failed error={error} />}
      {data !== null && (
        <pre class="given" tabIndex={0}>
          {data.includes("\u0000") ? "Not text." : shown(data.slice(0, LOOK_BYTES))}
        </pre>
      )}
    </section>
  );
}
