// What this machine can do: budgets, templates, and the server itself.

import { useState } from "preact/hooks";
import { get, me, send } from "../api/client";
import type { BudgetReport, Checkup, Health, LoginInfo, PoolInfo, TemplateInfo } from "../api/records";
import { Icon } from "../parts/icons";
import { useLoad } from "../parts/load";
import { Command, Failed } from "../parts/notes";
import { Bar } from "../run/receipt";
import { count, date, dollars, duration, repoName, shown } from "../text/format";

export function Budgets() {
  const { data, error, again } = useLoad("budget", () => get<BudgetReport>("/v1/budget"), 10);
  return (
    <div class="page">
      <h1>Budgets</h1>
      {error !== null && <Failed error={error} again={again} />}
      {data?.accounts.map((account) => (
        <section key={`${account.level} ${account.name}`} class={`account ${account.level}`}>
          <h2>
            {account.level} <span class="number">{account.level === "project" ? repoName(account.name) : shown(account.name)}</span>
            {account.period && <span class="tag">this {account.period}</span>}
          </h2>
          <div class="bars">
            <Bar label="dollars" spent={account.spent.dollars} limit={account.limits.dollars ?? null} words={dollars} />
            <Bar label="tokens" spent={account.spent.tokens} limit={account.limits.tokens ?? null} />
            <Bar label="steps" spent={account.spent.steps} limit={account.limits.steps ?? null} />
            <Bar label="time" spent={account.spent.seconds} limit={account.limits.seconds ?? null} words={duration} />
          </div>
          {account.spent.unpriced > 0 && <p class="dim">{count(account.spent.unpriced)} calls to models without a known price are not counted in dollars.</p>}
        </section>
      ))}
    </div>
  );
}

export function Machine() {
  const health = useLoad("health", () => get<Health>("/v1/health"), 5);
  const pool = useLoad("pool", () => get<PoolInfo[]>("/v1/pool"), 5);
  const templates = useLoad("templates", () => get<TemplateInfo[]>("/v1/templates"));
  const logins = useLoad("logins", () => get<LoginInfo[]>("/v1/logins"));
  const [failure, setFailure] = useState<unknown>(null);
  const end = (login: string) => void send("DELETE", `/v1/logins/${encodeURIComponent(login)}`).then(logins.again, setFailure);
  return (
    <div class="page">
      <h1>Machine</h1>
      {(failure ?? health.error) !== null && <Failed error={failure ?? health.error} />}
      {health.data && (
        <p>
          <Icon name={health.data.ok ? "check" : "warn"} class={health.data.ok ? "good" : "bad"} /> Cloister {health.data.version}{" "}
          {health.data.ok ? "works" : shown(health.data.reason ?? "does not work")}
          {health.data.audit_export && `, export of the audit: ${health.data.audit_export}`}
        </p>
      )}
      {me.value?.role === "admin" && <Doctor />}
      <section>
        <h2>Kept warm</h2>
        {pool.data?.length === 0 && <p class="dim">No sandboxes are kept warm: the setting <code>pool</code> names some.</p>}
        {pool.data?.map((one) => (
          <Bar key={`${one.template} ${one.tier}`} label={`${one.template}, ${one.tier}`} spent={one.ready} limit={one.size} />
        ))}
      </section>
      <section>
        <h2>Templates</h2>
        <ul class="plain-list">
          {templates.data?.map((one) => (
            <li key={one.name} class="file-line">
              <code>{shown(one.name)}</code>
              <span class={one.ready ? "good" : one.failed ? "bad" : "dim"}>
                <Icon name={one.ready ? "check" : one.failed ? "cross" : "clock"} /> {one.ready ? "ready" : one.failed ? "failed" : "not built"}
              </span>
              <span class="dim">{one.about ? `built ${date(one.about.built_at)} in ${duration(one.about.seconds)}` : ""}</span>
              <span />
            </li>
          ))}
        </ul>
      </section>
      <section>
        <h2>Browsers that are logged in</h2>
        <ul class="plain-list">
          {logins.data?.map((one) => (
            <li key={one.id} class="file-line">
              <span>
                {shown(one.name)}, {one.role}
                {one.id === me.value?.login && <span class="tag">this one</span>}
              </span>
              <span class="dim">since {date(one.since)}</span>
              <span class="dim">until {date(one.until)}</span>
              <button onClick={() => end(one.id)}>End</button>
            </li>
          ))}
        </ul>
      </section>
    </div>
  );
}

/** What `cloister doctor` says about the machine of the server. */
function Doctor() {
  const [found, setFound] = useState<Checkup | "busy" | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const check = () => {
    setFound("busy");
    setFailure(null);
    get<Checkup>("/v1/doctor").then(setFound, (error: unknown) => (setFailure(error), setFound(null)));
  };
  return (
    <section aria-label="Doctor">
      <h2>Can a run start here?</h2>
      <p role="status">
        <button onClick={check} disabled={found === "busy"}>
          {found === "busy" ? "Checking, tiers included…" : "Check this machine"}
        </button>{" "}
        {found && found !== "busy" && (
          <strong class={found.ready ? "good" : "bad"}>{found.ready ? "A run can start." : "A run cannot start yet."}</strong>
        )}
        {!found && <Command text="cloister doctor" />}
      </p>
      {failure !== null && <Failed error={failure} />}
      {found && found !== "busy" && (
        <ul class="plain-list">
          {found.findings.map((one, index) => (
            <li key={index} class="finding">
              <Icon name={one.ok ? "check" : one.needed ? "cross" : "warn"} class={one.ok ? "good" : one.needed ? "bad" : "warn"} />
              <strong>{shown(one.name)}</strong>
              <span>
                {shown(one.found)}
                {one.fix && !one.ok && (
                  <>
                    {" "}
                    <Command text={one.fix} />
                  </>
                )}
              </span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
