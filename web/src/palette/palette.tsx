// ⌘K: to any page or run by a few letters.

import { useRef, useState } from "preact/hooks";
import { runs } from "../overview/live";
import { useKeys } from "../parts/keys";
import { go } from "../router";
import { oneLine, repoName } from "../text/format";

/** The types of Preact know no combobox without a datalist. */
const COMBOBOX: object = { type: "text", role: "combobox" };

type Target = { path: string; title: string; about: string };

export function Palette({ places }: { places: readonly { path: string; title: string }[] }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const open = () => {
    setText("");
    setAt(0);
    dialog.current?.showModal();
  };
  useKeys([{ keys: "⌘K", does: "search pages and runs", run: open }]);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const all: Target[] = [
    ...places.map((place) => ({ path: place.path, title: place.title, about: "page" })),
    ...(runs.value ?? []).map((run) => ({ path: `/runs/${run.id}`, title: oneLine(run.prompt, 120), about: `${repoName(run.repo)} ${run.id} ${run.outcome ?? run.state}` })),
  ];
  const found = all.filter((one) => words.every((word) => `${one.title} ${one.about}`.toLowerCase().includes(word))).slice(0, 12);
  const choose = (target: Target | undefined) => {
    if (!target) return;
    dialog.current?.close();
    go(target.path);
  };
  return (
    <>
      <button class="quiet find" onClick={open}>
        Search <kbd>⌘K</kbd>
      </button>
      <dialog ref={dialog} class="palette" aria-label="Search" onClick={(event) => event.target === event.currentTarget && event.currentTarget.close()}>
        <input
          {...COMBOBOX}
          aria-label="Pages and runs"
          aria-expanded="true"
          aria-controls="found"
          aria-activedescendant={found[at] ? `found-${at}` : undefined}
          placeholder="A page, a prompt, a repository"
          value={text}
          onInput={(event) => (setText(event.currentTarget.value), setAt(0))}
          onKeyDown={(event) => {
            if (event.key === "ArrowDown") setAt(Math.min(found.length - 1, at + 1));
            else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
            else if (event.key === "Enter") choose(found[at]);
            else return;
            event.preventDefault();
          }}
        />
        <ul id="found" role="listbox" aria-label="Found" class="plain-list">
          {found.map((one, index) => (
            <li key={one.path} id={`found-${index}`} role="option" aria-selected={index === at} onClick={() => choose(one)}>
              <span class="run-prompt">{one.title}</span> <span class="dim">{one.about}</span>
            </li>
          ))}
        </ul>
      </dialog>
    </>
  );
}
