// A question of the model: a line of the timeline, and a card to answer it. The run goes on with the default after the deadline.

import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "../parts/icons";
import { useKeys } from "../parts/keys";
import { Failed } from "../parts/notes";
import { duration, now, oneLine, shown } from "../text/format";
import type { Question } from "./fold";

export const DEADLINE = "deadline";

/** How a question was answered, or until when it can be. */
function outcome({ asked, answer, by, later, over }: Question): string {
  const fallback = `“${shown(asked.default)}”`;
  if (later) return `No one answered in time, so it went on with ${fallback}. ${shown(later)} answered later, with a message.`;
  if (by === DEADLINE) return `No one answered in time: it goes on with ${fallback}.${over ? "" : " A late answer is sent to the run as a message."}`;
  if (by) return `${shown(by)} answered: ${shown(answer)}`;
  if (over) return "The run ended without an answer.";
  const left = asked.deadline - now.value;
  return left > 0 ? `Without an answer it goes on with ${fallback} in ${duration(left)}.` : `The time is up: it goes on with ${fallback}.`;
}

/** The line of the timeline. `hold` opens the card of a question that no one answered in time. */
export function QuestionLine({ row, hold }: { row: Question; hold: ((question: string) => void) | null }) {
  const waits = !row.by && !row.over;
  return (
    <>
      <p class={waits ? "" : "dim"}>{outcome(row)}</p>
      {waits && row.asked.choices.length > 0 && <p class="dim">{row.asked.choices.map((choice) => shown(choice)).join(" · ")}</p>}
      {hold && row.by === DEADLINE && !row.later && !row.over && (
        <p>
          <button onClick={() => hold(row.asked.question)}>Answer late</button>
        </p>
      )}
    </>
  );
}

type Props = { row: Question; first: boolean; reply: ((text: string) => Promise<unknown>) | null; hold: () => void; close: () => void };

/** Choices as buttons, and a field for any other answer. It stays while a person writes, even if the time is up meanwhile. */
export function QuestionCard({ row, first, reply, hold, close }: Props) {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<unknown>(null);
  const field = useRef<HTMLInputElement>(null);
  const late = row.by === DEADLINE;
  const { choices } = row.asked;
  const give = (answer: string) => {
    if (!reply || busy || !answer.trim()) return;
    setBusy(true);
    void reply(answer)
      .then(close, setFailure)
      .then(() => setBusy(false));
  };
  useEffect(() => {
    if (late) field.current?.focus();
  }, []);
  useKeys(
    first && reply
      ? [
          ...choices.map((choice, at) => ({ keys: String(at + 1), does: `answer: ${oneLine(choice, 40)}`, run: () => give(choice) })),
          { keys: "r", does: "write an answer", run: () => field.current?.focus() },
        ]
      : [],
  );
  return (
    <section class="row ask open card" aria-label="Question of the model">
      <p class="question">
        <Icon name="question" /> {shown(row.asked.text)}
      </p>
      {reply && (
        <form class="answers" onSubmit={(event) => (event.preventDefault(), give(text))}>
          {choices.map((choice, at) => (
            <button type="button" key={at} disabled={busy} onClick={() => give(choice)}>
              {shown(choice)} {first && <kbd>{at + 1}</kbd>}
            </button>
          ))}
          <input
            ref={field}
            aria-label="Your answer"
            placeholder={choices.length ? "Another answer" : "Your answer"}
            maxLength={20_000}
            value={text}
            onFocus={hold}
            onInput={(event) => setText(event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Escape" && (event.currentTarget.blur(), close())}
          />
          <button class="main" disabled={busy || !text.trim()}>Answer</button>
          {late && <button type="button" onClick={close}>Close</button>}
        </form>
      )}
      <p class="dim">{outcome(row)}</p>
      {failure !== null && <Failed error={failure} />}
    </section>
  );
}
