// Steering: say something, stop, choose a model.

import { useRef, useState } from "preact/hooks";
import { path, steer } from "../api/client";
import { useAttachments } from "../parts/attach";
import { Icon } from "../parts/icons";
import { useKeys } from "../parts/keys";
import { Failed } from "../parts/notes";
import type { Fold } from "./fold";

export function Composer({ run, fold, may }: { run: string; fold: Fold; may: boolean }) {
  const [text, setText] = useState("");
  const [model, setModel] = useState<string | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const attaching = useAttachments(setFailure);
  const over = fold.state === "finished";
  const attempt = async (what: () => Promise<unknown>, done?: () => void) => {
    setBusy(true);
    setFailure(null);
    try {
      await what();
      done?.();
    } catch (error) {
      setFailure(error);
    }
    setBusy(false);
  };
  const say = () => {
    if (!text.trim() || busy || attaching.busy) return;
    const given = attaching.files.length ? { attachments: attaching.files } : {};
    void attempt(
      () => steer(path`/v1/runs/${run}/say`, { text, ...given }),
      () => (setText(""), attaching.clear()),
    );
  };
  const stop = () => {
    if (!over) void attempt(() => steer(path`/v1/runs/${run}/stop`));
  };
  const pause = () => void attempt(() => steer(fold.pausing ? path`/v1/runs/${run}/resume` : path`/v1/runs/${run}/pause`));
  useKeys(
    may
      ? [
          { keys: "/", does: "say something", run: () => field.current?.focus() },
          ...(over ? [] : [{ keys: "s", does: "stop the run", run: stop }]),
          ...(over ? [] : [{ keys: "p", does: fold.pausing ? "let the run go on" : "pause the run", run: pause }]),
          ...(over ? [] : [{ keys: "i", does: "stop the current step", run: () => void attempt(() => steer(path`/v1/runs/${run}/interrupt`)) }]),
        ]
      : [],
  );
  if (!may) return null;
  return (
    <div class="composer">
      {failure !== null && <Failed error={failure} />}
      {model !== null && (
        <form
          class="model"
          onSubmit={(event) => {
            event.preventDefault();
            void attempt(() => steer(path`/v1/runs/${run}/model`, { model }), () => setModel(null));
          }}
        >
          <input aria-label="Model" placeholder="provider:model" value={model} ref={(element) => element?.focus()} onInput={(event) => setModel(event.currentTarget.value)} />
          <button class="main" disabled={!model.trim() || busy}>Use from the next step</button>
          <button type="button" onClick={() => setModel(null)}>Cancel</button>
        </form>
      )}
      {attaching.list}
      <div class="composer-line">
        {attaching.button}
        <textarea
          {...attaching.field}
          ref={field}
          rows={Math.min(8, Math.max(1, text.split("\n").length))}
          aria-label={over ? "Say something: the run continues in another round" : "Say something to the run"}
          placeholder={over ? "Say something: the run continues" : "Say something: it is read at the next step"}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              say();
            }
            if (event.key === "Escape") event.currentTarget.blur();
          }}
        />
        <button class="main" disabled={!text.trim() || busy || attaching.busy} onClick={say}>Say</button>
        {!over && (
          <>
            <button disabled={busy} onClick={() => setModel(model === null ? "" : null)}>Model</button>
            <button disabled={busy} onClick={pause}>
              <Icon name={fold.pausing ? "chevron" : "pause"} />
              {fold.pausing ? "Go on" : "Pause"}
            </button>
            <button class="bad" disabled={fold.stopping || busy} onClick={stop}>
              <Icon name="stop" />
              {fold.stopping ? "Stopping" : "Stop"}
            </button>
          </>
        )}
      </div>
    </div>
  );
}
