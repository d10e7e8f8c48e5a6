// Links that let others into this run: make one, see which hold, end them.

import { useState } from "preact/hooks";
import { get, path, send } from "../api/client";
import type { MadeShare, ShareInfo } from "../api/records";
import { useLoad } from "../parts/load";
import { Command, Failed } from "../parts/notes";
import { date, shown } from "../text/format";

const DAY = 86_400;
const SPANS = [
  [3_600, "an hour"],
  [DAY, "a day"],
  [7 * DAY, "a week"],
  [30 * DAY, "30 days"],
] as const;

export function Share({ run, close }: { run: string; close: () => void }) {
  const { data, error, again } = useLoad(`shares:${run}`, () => get<ShareInfo[]>(path`/v1/runs/${run}/shares`));
  const [level, setLevel] = useState("sees");
  const [seconds, setSeconds] = useState(7 * DAY);
  const [made, setMade] = useState("");
  const [failure, setFailure] = useState<unknown>(null);
  const make = async () => {
    try {
      const found = await send<MadeShare>("POST", path`/v1/runs/${run}/shares`, { level, seconds });
      setMade(`${location.origin}/share#${found.secret}`);
      setFailure(null);
    } catch (problem) {
      setFailure(problem);
    }
    again();
  };
  const end = (id: string) => void send("DELETE", path`/v1/runs/${run}/shares/${id}`).then(again, setFailure);
  return (
    <section class="share" aria-label="Links to this run" onKeyDown={(event) => event.key === "Escape" && close()}>
      <form onSubmit={(event) => (event.preventDefault(), void make())}>
        <label>
          Anyone who has the link{" "}
          <select value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
            <option value="sees">sees this run</option>
            <option value="steers">sees and steers this run</option>
          </select>
        </label>{" "}
        <label>
          for{" "}
          <select value={seconds} onChange={(event) => setSeconds(Number(event.currentTarget.value))}>
            {SPANS.map(([value, words]) => (
              <option key={value} value={value}>
                {words}
              </option>
            ))}
          </select>
        </label>{" "}
        <button class="main">Make a link</button>{" "}
        <button type="button" onClick={close}>
          Close
        </button>
      </form>
      {(failure ?? error) !== null && <Failed error={failure ?? error} />}
      {made && (
        <p role="status">
          <Command text={made} /> <span class="dim">It is not shown again.</span>
        </p>
      )}
      <ul class="plain-list">
        {data?.map((one) => (
          <li key={one.id} class="member">
            <span>
              <code>{one.id}</code> {one.level}, by {shown(one.by)}, until {date(one.until)}
            </span>
            <button onClick={() => end(one.id)}>End</button>
          </li>
        ))}
      </ul>
    </section>
  );
}
