// Time: a slider over the log. The page shows the run as it looked at that moment; from there it can be forked.

import { useState } from "preact/hooks";
import { path, steer } from "../api/client";
import type { Admitted, Event, GoesOn } from "../api/records";
import { Icon } from "../parts/icons";
import { Failed } from "../parts/notes";
import { go } from "../router";
import { clock } from "../text/format";

type Props = {
  events: readonly Event[];
  whole: boolean;
  at: number | null;
  move: (seq: number | null) => void;
  fork: (() => void) | null;
};

export function Slider({ events, whole, at, move, fork }: Props) {
  const first = events[0]?.seq ?? 1;
  const last = events.at(-1)?.seq ?? 1;
  const value = at ?? last;
  const event = events[value - first];
  const words = event ? `#${value}, ${clock(event.at)}` : `#${value}`;
  return (
    <div class={at ? "slider past" : "slider"}>
      <Icon name="clock" />
      <input
        type="range"
        min={first}
        max={last}
        value={value}
        disabled={!whole || last <= first}
        aria-label="Time"
        aria-valuetext={at ? words : "now"}
        onInput={(given) => {
          const seq = Number(given.currentTarget.value);
          move(seq >= last ? null : seq);
        }}
      />
      <span class="slider-words">{at ? words : "now"}</span>
      {at && (
        <>
          {fork && <button onClick={fork}>Fork from here</button>}
          <button onClick={() => move(null)}>Now</button>
        </>
      )}
    </div>
  );
}

/** Asks how to continue from a save point: in a new run, or the same run back to it. */
export function Fork({ run, seq, finished, close }: { run: string; seq: number; finished: boolean; close: () => void }) {
  const [text, setText] = useState("");
  const [failure, setFailure] = useState<unknown>(null);
  const lead = (id: string) => {
    close();
    go(`/runs/${id}`);
  };
  const fork = () =>
    steer<Admitted>(path`/v1/runs/${run}/fork`, { at: seq, prompt: text.trim() || null }).then((made) => lead(made.id), setFailure);
  const back = () => steer<GoesOn>(path`/v1/runs/${run}/rewind`, { to: seq }).then((made) => lead(made.id), setFailure);
  return (
    <dialog
      ref={(element) => {
        if (element && !element.open) element.showModal();
      }}
      aria-labelledby="fork-title"
      onClose={close}
    >
      <form
        class="fork-form"
        onSubmit={(event) => {
          event.preventDefault();
          void fork();
        }}
      >
        <h2 id="fork-title">Continue from save point #{seq}</h2>
        <p class="dim">A fork is a new run with the files and the conversation of that moment. This run stays as it is.</p>
        <textarea
          rows={3}
          aria-label="What should it do differently?"
          placeholder="What should it do differently? It may stay empty."
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        {failure !== null && <Failed error={failure} />}
        <div class="answers">
          <button class="main">Fork from here</button>
          <button type="button" onClick={() => void back()}>
            {finished ? "Back to here, in a new run" : "Take this run back to here"}
          </button>
          <button type="button" onClick={close}>Cancel</button>
        </div>
      </form>
    </dialog>
  );
}
