// What the run cost, turn by turn and model by model, and what it touched.

import { getText, path } from "../api/client";
import { useLoad } from "../parts/load";
import { Failed } from "../parts/notes";
import { count, dollars, duration, modelName } from "../text/format";
import { Markdown } from "../text/markdown";
import type { Fold, Spent } from "./fold";

export function Receipt({ run, fold, past }: { run: string; fold: Fold; past: boolean }) {
  return (
    <div class="receipt">
      <Costs fold={fold} />
      {!past && <Touched run={run} last={fold.state === "finished" ? fold.last : 0} />}
    </div>
  );
}

type Sum = { calls: number; input: number; output: number; cost: number | null; seconds: number };

function summed(spent: readonly Spent[]): Sum {
  return spent.reduce<Sum>(
    (sum, one) => ({
      calls: sum.calls + 1,
      input: sum.input + one.input,
      output: sum.output + one.output,
      cost: one.cost === null ? sum.cost : (sum.cost ?? 0) + one.cost,
      seconds: sum.seconds + one.seconds,
    }),
    { calls: 0, input: 0, output: 0, cost: null, seconds: 0 },
  );
}

function Costs({ fold }: { fold: Fold }) {
  const budget = fold.request?.budget;
  const models = [...new Set(fold.spent.map((one) => one.model))];
  if (!fold.spent.length) return <p class="dim pad">No call to a model yet.</p>;
  const all = summed(fold.spent);
  return (
    <>
      {budget && (
        <div class="bars">
          <Bar label="steps" spent={fold.spent.filter((one) => one.step !== null).length} limit={budget.steps ?? null} />
          <Bar label="tokens" spent={all.input + all.output} limit={budget.tokens ?? null} />
          <Bar label="dollars" spent={all.cost ?? 0} limit={budget.dollars ?? null} words={dollars} />
        </div>
      )}
      <table class="table">
        <caption>By model</caption>
        <thead>
          <tr>
            <th scope="col">model</th>
            <th scope="col" class="right">calls</th>
            <th scope="col" class="right">in</th>
            <th scope="col" class="right">out</th>
            <th scope="col" class="right">time</th>
            <th scope="col" class="right">cost</th>
          </tr>
        </thead>
        <tbody>
          {models.map((model) => {
            const sum = summed(fold.spent.filter((one) => one.model === model));
            return <SumRow key={model} name={modelName(model)} sum={sum} />;
          })}
          {models.length > 1 && <SumRow name="all" sum={all} />}
        </tbody>
      </table>
      <table class="table">
        <caption>By turn</caption>
        <thead>
          <tr>
            <th scope="col">turn</th>
            <th scope="col" class="right">in</th>
            <th scope="col" class="right">out</th>
            <th scope="col" class="right">time</th>
            <th scope="col" class="right">cost</th>
          </tr>
        </thead>
        <tbody>
          {fold.spent.slice(-300).map((one, at) => (
            <tr key={at}>
              <td>
                {one.step === null ? "beside" : one.step}
                {one.estimated && <span class="tag">estimate</span>}
              </td>
              <td class="right">{count(one.input)}</td>
              <td class="right">{count(one.output)}</td>
              <td class="right">{duration(one.seconds)}</td>
              <td class="right">{one.cost === null ? "unknown" : dollars(one.cost)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function SumRow({ name, sum }: { name: string; sum: Sum }) {
  return (
    <tr>
      <td>{name}</td>
      <td class="right">{count(sum.calls)}</td>
      <td class="right">{count(sum.input)}</td>
      <td class="right">{count(sum.output)}</td>
      <td class="right">{duration(sum.seconds)}</td>
      <td class="right">{sum.cost === null ? "unknown" : dollars(sum.cost)}</td>
    </tr>
  );
}

export function Bar({ label, spent, limit, words = count }: { label: string; spent: number; limit: number | null; words?: (value: number) => string }) {
  const part = limit ? Math.min(1, spent / limit) : 0;
  return (
    <div class="bar">
      <span>{label}</span>
      {limit ? <meter min={0} max={1} high={0.8} value={part} aria-label={`${label} spent`} /> : <span class="dim">no limit</span>}
      <span class="right">
        {words(spent)}
        {limit ? ` of ${words(limit)}` : ""}
      </span>
    </div>
  );
}

function Touched({ run, last }: { run: string; last: number }) {
  const { data, error } = useLoad(`${run}:${last}`, () => getText(path`/v1/runs/${run}/receipt/markdown`));
  if (error && data === null) return <Failed error={error} />;
  return data === null ? null : <Markdown text={data} />;
}
