// A new run: one large field for the prompt; the rest has its usual values and is folded.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, getFile, path, send, sentence } from "../api/client";
import type { Admitted, Event, Outlook, RunRow, RunRule, RunWish } from "../api/records";
import { useAttachments } from "../parts/attach";
import { Icon } from "../parts/icons";
import { useLoad } from "../parts/load";
import { Command, Failed } from "../parts/notes";
import { go, query } from "../router";
import { count, duration, oneLine, shown } from "../text/format";

type Form = { prompt: string; repo: string; ref: string; model: string; checks: string; exclude: string; n: string; tier: string; dollars: string; steps: string; hosts: string; rules: string; kept: Partial<RunWish> };
const EMPTY: Form = { prompt: "", repo: "", ref: "", model: "", checks: "", exclude: "", n: "1", tier: "auto", dollars: "", steps: "", hosts: "", rules: "", kept: {} };

export function NewRunPage() {
  const [form, setForm] = useState<Form>({ ...EMPTY, prompt: query.value.get("prompt") ?? "", repo: query.value.get("repo") ?? "" });
  const [failure, setFailure] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const key = useRef(crypto.randomUUID());
  const from = query.value.get("from");
  const runs = useLoad("repos", () => get<RunRow[]>("/v1/runs?limit=200"));
  const repos = [...new Set(runs.data?.map((row) => row.repo))].slice(0, 50);
  const set = (changes: Partial<Form>) => {
    key.current = crypto.randomUUID();
    setForm((before) => ({ ...before, ...changes }));
  };
  useEffect(() => {
    if (from) {
      void get<Event[]>(path`/v1/runs/${from}/events?limit=1`).then(async ([first]) => {
        if (first?.body.type !== "RunAdmitted") return;
        const { attachments = [], ...wish } = first.body.request;
        // They belong to that run: this one gets its own.
        const files = attachments.map((one) => getFile(path`/v1/runs/${from}/attachments/${one.sha256}`, one.name).catch((error: unknown) => setFailure(error)));
        attaching.add((await Promise.all(files)).filter((one) => one instanceof File));
        set(formOf(wish));
      }, setFailure);
    }
  }, [from]);
  useEffect(() => {
    const last = runs.data?.[0]?.repo;
    if (last && !from) setForm((before) => (before.repo ? before : { ...before, repo: last }));
  }, [runs.data]);
  // Half of an address is not looked at.
  const [typing, setTyping] = useState(false);
  const whole = { onFocus: () => setTyping(true), onBlur: () => setTyping(false) };
  const attaching = useAttachments(setFailure, () => (key.current = crypto.randomUUID()));
  const start = async () => {
    setBusy(true);
    const kept = attaching.files.length ? { attachments: attaching.files } : {};
    try {
      const made = await send<Admitted>("POST", "/v1/runs", { ...wishOf(form), ...kept, key: key.current });
      go(`/runs/${made.id}`);
    } catch (error) {
      setFailure(error);
      setBusy(false);
    }
  };
  const field = (name: Exclude<keyof Form, "kept">, label: string, placeholder: string, more: Record<string, unknown> = {}) => (
    <label class="field">
      <span>{label}</span>
      <input value={form[name]} placeholder={placeholder} onInput={(event) => set({ [name]: event.currentTarget.value })} {...more} />
    </label>
  );
  return (
    <div class="page new-run">
      <h1>New run</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void start();
        }}
      >
        <label class="field">
          <span>What should be done?</span>
          <textarea
            rows={8}
            value={form.prompt}
            placeholder="Fix the rounding in split(). Markdown is fine; drop or paste a picture or a log file."
            ref={(element) => {
              if (element && !form.prompt && document.activeElement === document.body) element.focus();
            }}
            onInput={(event) => set({ prompt: event.currentTarget.value })}
            onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && form.prompt && form.repo && void start()}
            {...attaching.field}
          />
        </label>
        {attaching.list}
        {field("repo", "Repository", "a git address, or a directory on the server", { list: "repos", required: true, ...whole })}
        <Look repo={typing ? "" : form.repo.trim()} commit={form.ref.trim()} tier={form.tier} named={form.checks.trim() !== ""} />
        <datalist id="repos">
          {repos.map((repo) => (
            <option key={repo} value={repo} />
          ))}
        </datalist>
        <details>
          <summary>More: branch, model, checks, attempts, budget, isolation, hosts, rules</summary>
          <div class="fields">
            {field("ref", "Branch, tag or commit", "HEAD", whole)}
            {field("model", "Model", "the configured one")}
            {field("n", "Attempts", "1", { type: "number", min: 1, max: 16 })}
            {field("dollars", "Budget in dollars", "the configured one", { type: "number", min: 0, step: "0.01" })}
            {field("steps", "Steps", "the configured number", { type: "number", min: 1 })}
            <label class="field">
              <span>Isolation</span>
              <select value={form.tier} onChange={(event) => set({ tier: event.currentTarget.value })}>
                {["auto", "container", "gvisor", "microvm"].map((tier) => (
                  <option key={tier}>{tier}</option>
                ))}
              </select>
            </label>
          </div>
          <label class="field">
            <span>Checks, one per line</span>
            <textarea rows={2} value={form.checks} placeholder="found in the repository" onInput={(event) => set({ checks: event.currentTarget.value })} />
          </label>
          <label class="field">
            <span>Red tests that do not count, one pattern per line</span>
            <textarea rows={1} value={form.exclude} placeholder="none" onInput={(event) => set({ exclude: event.currentTarget.value })} />
          </label>
          {field("hosts", "Hosts that it may reach, besides those of the rules", "none")}
          <label class="field">
            <span>Rules for this run, one per line</span>
            <textarea rows={2} value={form.rules} placeholder="deny bash:git push*" onInput={(event) => set({ rules: event.currentTarget.value })} />
          </label>
        </details>
        <Kept kept={form.kept} change={(kept) => set({ kept })} />
        {failure !== null && <Failed error={failure} />}
        <div class="answers">
          {attaching.button}
          <button class="main" disabled={busy || attaching.busy || !form.prompt.trim() || !form.repo.trim()}>Start</button>
          <Command text={`cloister run ${JSON.stringify(form.prompt.split("\n")[0]?.slice(0, 60) || "…")} --repo ${form.repo || "."}`} />
        </div>
      </form>
    </div>
  );
}

const PAUSE = 700;
const CHECKS = 5;

/** What a run would find in the repository. Looking keeps a sandbox warm for it while the rest is typed. */
function Look({ repo, commit, tier, named }: { repo: string; commit: string; tier: string; named: boolean }) {
  const [found, setFound] = useState<{ of: string; outlook: Outlook | null; problem: string }>({ of: "", outlook: null, problem: "" });
  const of = `${repo} ${commit} ${tier}`;
  useEffect(() => {
    if (!repo) return;
    let wanted = true;
    const timer = setTimeout(() => {
      send<Outlook>("POST", "/v1/environments/look", { repo, ref: commit || null, tier }).then(
        (outlook) => wanted && setFound({ of, outlook, problem: outlook.problem }),
        (failure: unknown) => wanted && setFound({ of, outlook: null, problem: sentence(failure) }),
      );
    }, PAUSE);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [of]);
  const { outlook, problem } = found.of === of ? found : { outlook: null, problem: "" };
  return (
    <div class="look" role="status">
      {!repo ? (
        <p class="dim">Its checks and environment are shown here.</p>
      ) : problem ? (
        <p class="warn">
          <Icon name="warn" /> {shown(problem)}
        </p>
      ) : !outlook ? (
        <p class="dim">Looking at the repository…</p>
      ) : (
        <>
          <p>
            {outlook.branch ? `${shown(outlook.branch)} at ` : ""}
            <code>{outlook.commit.slice(0, 10)}</code>
            {". "}
            {named ? "The checks are those below." : outlook.checks.length ? "Checks found:" : "No checks found: name some below, or nothing can be proven."}
            {!named &&
              outlook.checks.slice(0, CHECKS).map((check) => (
                <>
                  {" "}
                  <code key={check}>{shown(check)}</code>
                </>
              ))}
            {!named && (outlook.checks.length ?? 0) > CHECKS && ` and ${outlook.checks!.length - CHECKS} more`}
          </p>
          <p class="dim">{outlook.ready ? "Its environment is ready; a sandbox is being warmed." : "Its environment is built first."}</p>
          {outlook.note && <p class="warn">{shown(outlook.note)}</p>}
        </>
      )}
    </div>
  );
}

function wishOf(form: Form): RunWish {
  const words = (text: string, by: RegExp) => text.split(by).map((one) => one.trim()).filter(Boolean);
  return {
    ...form.kept,
    prompt: form.prompt,
    repo: form.repo.trim(),
    ref: form.ref.trim() || null,
    model: form.model.trim() || null,
    checks: words(form.checks, /\n/),
    exclude_tests: words(form.exclude, /\n/),
    n: Number(form.n) || 1,
    tier: form.tier,
    allow_hosts: words(form.hosts, /[\s,]+/),
    rules: words(form.rules, /\n/).map((line) => {
      const [effect = "", ...action] = line.split(/\s+/);
      return { effect: effect as RunRule["effect"], action: action.join(" ") };
    }),
    budget: { ...form.kept.budget, ...(form.dollars ? { dollars: Number(form.dollars) } : {}), ...(form.steps ? { steps: Number(form.steps) } : {}) },
  };
}

function formOf(wish: RunWish): Form {
  return {
    prompt: wish.prompt,
    repo: wish.repo,
    ref: wish.ref ?? "",
    model: wish.model ?? "",
    checks: wish.checks?.join("\n") ?? "",
    exclude: wish.exclude_tests?.join("\n") ?? "",
    n: String(wish.n ?? 1),
    tier: wish.tier ?? "auto",
    dollars: String(wish.budget?.dollars ?? ""),
    steps: String(wish.budget?.steps ?? ""),
    hosts: wish.allow_hosts?.join(" ") ?? "",
    rules: wish.rules?.map((rule) => `${rule.effect} ${rule.action}`).join("\n") ?? "",
    kept: keptOf(wish),
  };
}

type Asked = "prompt" | "repo" | "ref" | "model" | "checks" | "exclude_tests" | "n" | "tier" | "allow_hosts" | "rules" | "attachments" | "key";
type Hidden = Exclude<keyof RunWish, Asked>;

/** What the form has no field for, complete: words for each, which a person can leave out. */
const KEPT: { [Name in Hidden]: (value: NonNullable<RunWish[Name]>) => string } = {
  harness: (name) => `harness ${name}`,
  template: (name) => (name === "default" ? "" : `template ${name}`),
  kind: (name) => `kind ${name}`,
  budget: ({ tokens, seconds }) => [tokens && `${count(tokens)} tokens`, seconds && duration(seconds)].filter(Boolean).join(", "),
  also: (repos) => repos.map((one) => `also ${one.repo}${one.ref ? ` @ ${one.ref}` : ""}`).join(", "),
  attempts: (each) => (each.length ? `${count(each.length)} attempts that differ` : ""),
  first_green: (yes) => (yes ? "ends with the first proven attempt" : ""),
  search: (how) => `search ${how}`,
  asked: (names) => names.length ? `must be green: ${names.join(", ")}` : "",
  allow_test_changes: (names) => names.length ? `may change ${names.join(", ")}` : "",
  ask_test_changes: (yes) => (yes ? "asks about changes of tests" : ""),
  setup: (how) => (how === "auto" ? "" : `set-up: ${how}`),
  notes: (how) => `notes: ${how}`,
  pull_request: (yes) => (yes ? "opens a pull request" : "no pull request"),
  issue: (number) => `issue ${number}`,
  seed: (number) => (number ? `seed ${number}` : ""),
  forked_from: ({ run, seq }) => `continues ${run} from #${seq}`,
  origin: (who) => (who === "user" ? "" : `words of others: ${who}`),
};

function told<Name extends Hidden>(name: Name, wish: Partial<RunWish>): string {
  const value = wish[name];
  return value == null ? "" : KEPT[name](value as NonNullable<RunWish[Name]>);
}

function keptOf(wish: RunWish): Partial<RunWish> {
  const { tokens, seconds } = wish.budget ?? {};
  const all = { ...wish, budget: { tokens: tokens ?? null, seconds: seconds ?? null } };
  return Object.fromEntries((Object.keys(KEPT) as Hidden[]).filter((name) => told(name, all)).map((name) => [name, all[name]]));
}

function Kept({ kept, change }: { kept: Partial<RunWish>; change: (kept: Partial<RunWish>) => void }) {
  const names = Object.keys(kept) as Hidden[];
  if (!names.length) return null;
  return (
    <ul class="attached" aria-label="Kept from the earlier run">
      {names.map((name) => (
        <li key={name}>
          <span title={shown(told(name, kept))}>{oneLine(told(name, kept), 80)}</span>
          {name !== "origin" && (
            <button
              type="button"
              class="quiet"
              aria-label={`Leave out ${name}`}
              onClick={() => {
                const { [name]: _, ...rest } = kept;
                change(rest);
              }}
            >
              <Icon name="cross" />
            </button>
          )}
        </li>
      ))}
    </ul>
  );
}
