// The evidence: what was red and is green, what is red still, and what the checks do not show.

import type { Diagnosis, TestResult } from "../api/records";
import { Icon, type IconName } from "../parts/icons";
import { Spark } from "../parts/outcome";
import { count, duration, shown } from "../text/format";
import type { Fold } from "./fold";
import { Output } from "./output";

export function Evidence({ fold }: { fold: Fold }) {
  const found = fold.evidence ?? fold.baseline;
  if (!found) {
    return (
      <p class="dim pad">
        {fold.phase ? `No checks yet: ${fold.phase.name} goes on.` : "No checks have run."}
      </p>
    );
  }
  const { comparison } = found;
  const tests = new Map<string, TestResult>();
  for (const diagnosis of [...(fold.baseline?.diagnoses ?? []), ...found.diagnoses]) {
    for (const test of diagnosis.tests) tests.set(test.name, test);
  }
  return (
    <div class="evidence">
      {comparison && <p class="verdict">{verdict(fold)}</p>}
      <figure>
        <figcaption>failing after each check</figcaption>
        <Spark reds={fold.reds} wide />
      </figure>
      {comparison && (
        <>
          <Names title="red before, green now" icon="check" tone="good" names={comparison.fixed} tests={tests} was />
          <Names title="newly red" icon="cross" tone="bad" names={comparison.new} tests={tests} />
          <Names title="still red" icon="cross" tone="bad" names={comparison.still.filter((name) => !comparison.unrelated.includes(name))} tests={tests} />
          <Names title="missing" icon="warn" tone="bad" names={comparison.missing} tests={tests} />
          <Names title="skipped now" icon="warn" tone="bad" names={comparison.skipped} tests={tests} />
          <Names title="weakened tests" icon="warn" tone="bad" names={comparison.weakened} tests={tests} />
          <Names title="flaky" icon="question" tone="warn" names={comparison.flaky} tests={tests} />
          <Names title="red before, not asked for" icon="dot" tone="dim" names={comparison.unrelated} tests={tests} />
          <Names title="not run" icon="question" tone="warn" names={comparison.not_run} tests={tests} />
          {comparison.notes.map((note) => (
            <p class="note" key={note}>
              <Icon name="warn" /> {shown(note)}
            </p>
          ))}
        </>
      )}
      <h2 class="small">checks</h2>
      <ul class="plain-list">
        {found.diagnoses.map((one, at) => (
          <CheckLine key={at} now={one} base={fold.baseline?.diagnoses.find((base) => base.check === one.check)} />
        ))}
      </ul>
    </div>
  );
}

function verdict(fold: Fold): string {
  const comparison = fold.evidence?.comparison;
  if (!comparison) return "";
  if (comparison.shown.length) {
    const more = comparison.shown.length - 1;
    return `Shown by ${shown(comparison.shown[0]!)}${more ? ` and ${more} more` : ""}: red on the base, green now.`;
  }
  if (comparison.green && comparison.ran) return "Nothing new is red; no test shows the requested change.";
  if (!comparison.ran) return "No check could run.";
  const { asked, missing, skipped, still, unrelated, weakened } = comparison;
  const left = new Set([...comparison.new, ...asked, ...missing, ...skipped, ...weakened, ...still.filter((name) => !unrelated.includes(name))]);
  return `${count(left.size)} still to fix.`;
}

type NamesProps = { title: string; icon: IconName; tone: string; names: string[]; tests: Map<string, TestResult>; was?: boolean };

function Names({ title, icon, tone, names, tests, was = false }: NamesProps) {
  if (!names.length) return null;
  return (
    <section class="names">
      <h2 class="small">
        {title} <span class="number">{count(names.length)}</span>
      </h2>
      <ul class="plain-list">
        {names.slice(0, 200).map((name) => {
          const test = tests.get(name);
          const more = test?.message && !was ? [test.message, test.source].filter(Boolean).join("\n\n") : "";
          const line = (
            <>
              {was && <Icon name="cross" class="bad" />}
              <Icon name={icon} class={tone} />
              <span class="name">{shown(name)}</span>
            </>
          );
          return <li key={name}>{more ? <details><summary>{line}</summary><Output text={more} /></details> : <div class="line">{line}</div>}</li>;
        })}
        {names.length > 200 && <li class="dim">… and {count(names.length - 200)} more</li>}
      </ul>
    </section>
  );
}

function sums(one: Diagnosis | undefined): string {
  if (!one) return "–";
  if (one.not_run) return "not run";
  const red = one.tests.filter((test) => test.status === "failed" || test.status === "error").length;
  const green = one.unlisted + one.tests.filter((test) => test.status === "passed").length;
  if (!red && !green) return one.exit_code === 0 ? "green" : `exit ${one.exit_code}`;
  return `${red} red, ${green} green`;
}

function CheckLine({ now, base }: { now: Diagnosis; base: Diagnosis | undefined }) {
  const green = now.exit_code === 0 && !now.killed && !now.not_run;
  return (
    <li class="check-line">
      <Icon name={green ? "check" : "cross"} class={green ? "good" : "bad"} />
      <code>{shown(now.check)}</code>
      <span class="dim">
        {base && base !== now ? `${sums(base)} → ` : ""}
        {sums(now)} · {duration(now.seconds)}
      </span>
    </li>
  );
}
