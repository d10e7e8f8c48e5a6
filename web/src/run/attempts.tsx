// The attempts of a run as a tree, with their save points; two of them can be compared.

import { useState } from "preact/hooks";
import { get, path } from "../api/client";
import type { NodeView, TreeView } from "../api/records";
import { Icon } from "../parts/icons";
import { useLoad } from "../parts/load";
import { Failed } from "../parts/notes";
import { Badge, standing } from "../parts/outcome";
import { count, dollars, modelName, oneLine, plural } from "../text/format";

type Props = { run: string; version: number; finished: boolean; go: (seq: number) => void };

export function Attempts({ run, version, finished, go }: Props) {
  const { data, error, again } = useLoad(`${run}:${version}:${finished}`, () => get<TreeView>(path`/v1/runs/${run}/tree`), 0, run);
  const [chosen, setChosen] = useState<number[]>([]);
  if (error && !data) return <Failed error={error} again={again} />;
  if (!data) return <p class="dim pad">Fetching the attempts…</p>;
  if (!data.nodes.length) return <p class="dim pad">No attempt has started.</p>;
  const roots = data.nodes.filter((node) => node.parent === null || !data.nodes.some((one) => one.attempt === node.parent));
  const pick = (attempt: number) =>
    setChosen((before) => (before.includes(attempt) ? before.filter((one) => one !== attempt) : [...before.slice(-1), attempt]));
  return (
    <div class="attempts">
      {data.forked_from && (
        <p class="dim">
          <Icon name="fork" /> forked from <a href={`/runs/${data.forked_from.run}?at=${data.forked_from.seq}`}>{data.forked_from.run}</a> at #{data.forked_from.seq}
        </p>
      )}
      {chosen.length === 2 && (
        <p>
          <a class="button" href={`/compare?a=${run}/${chosen[0]}&b=${run}/${chosen[1]}`}>
            Compare attempts {chosen[0]} and {chosen[1]}
          </a>
        </p>
      )}
      <ul class="plain-list tree">
        {roots.map((node) => (
          <Branch key={node.attempt} node={node} tree={data} chosen={chosen} pick={data.nodes.length > 1 ? pick : null} go={go} />
        ))}
      </ul>
    </div>
  );
}

type BranchProps = { node: NodeView; tree: TreeView; chosen: number[]; pick: ((attempt: number) => void) | null; go: (seq: number) => void };

function Branch({ node, tree, chosen, pick, go }: BranchProps) {
  const children = tree.nodes.filter((one) => one.parent === node.attempt);
  const won = tree.winner === node.attempt;
  return (
    <li>
      <div class={won ? "attempt won" : "attempt"}>
        <div class="attempt-head">
          {pick && (
            <input type="checkbox" aria-label={`Compare attempt ${node.attempt}`} checked={chosen.includes(node.attempt)} onChange={() => pick(node.attempt)} />
          )}
          <strong>attempt {node.attempt}</strong>
          <Badge standing={standing({ state: node.outcome ? "finished" : "running", outcome: node.outcome })} />
          {won && <span class="tag">the result</span>}
          <span class="dim">
            {[node.model && modelName(node.model), node.temperature !== null && `temperature ${node.temperature}`, `${count(node.tokens)} tokens`, dollars(node.dollars)]
              .filter(Boolean)
              .join(" · ")}
          </span>
        </div>
        {node.reason && (
          <p class="dim">
            from #{node.at}: {oneLine(node.reason)}
          </p>
        )}
        {node.ended && <p>{oneLine(node.ended, 160)}</p>}
        {node.points.length > 0 && (
          <p class="points" aria-label={plural(node.points.length, "save point")}>
            {node.points.slice(-80).map((point) => (
              <button
                key={point.seq}
                class={point.red === null ? "point" : point.red ? "point bad" : "point good"}
                title={`turn ${point.step}, #${point.seq}${point.red === null ? "" : `, ${point.red} red`}`}
                onClick={() => go(point.seq)}
              >
                {point.step}
              </button>
            ))}
          </p>
        )}
      </div>
      {children.length > 0 && (
        <ul class="plain-list tree">
          {children.map((child) => (
            <Branch key={child.attempt} node={child} tree={tree} chosen={chosen} pick={pick} go={go} />
          ))}
        </ul>
      )}
    </li>
  );
}
