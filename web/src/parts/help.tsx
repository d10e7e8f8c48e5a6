// `?` lists the keys that work here.

import { useRef } from "preact/hooks";
import { known, useKeys } from "./keys";

export function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  useKeys([{ keys: "?", does: "show the keys", run: () => dialog.current?.showModal() }]);
  return (
    <dialog ref={dialog} aria-labelledby="help-title" onClick={(event) => event.target === event.currentTarget && event.currentTarget.close()}>
      <form method="dialog">
        <h2 id="help-title">Keys</h2>
        <dl class="keys">
          {known.value.map((key) => (
            <div key={key.keys}>
              <dt>
                {key.keys.split(" ").map((one) => (
                  <kbd key={one}>{one}</kbd>
                ))}
              </dt>
              <dd>{key.does}</dd>
            </div>
          ))}
        </dl>
        <button class="main">Close</button>
      </form>
    </dialog>
  );
}
