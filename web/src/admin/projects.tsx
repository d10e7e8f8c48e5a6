// Projects: which repositories, and who sees, steers, approves and administers their runs.

import { useState } from "preact/hooks";
import { get, me, path, send } from "../api/client";
import type { Project } from "../api/records";
import { useLoad } from "../parts/load";
import { Command, Empty, Failed } from "../parts/notes";
import { plural, shown } from "../text/format";

const LEVELS = ["sees", "steers", "approves", "administers"] as const;
type Level = (typeof LEVELS)[number];

export function Projects() {
  const { data, error, again } = useLoad("projects", () => get<Project[]>("/v1/projects"));
  const [failure, setFailure] = useState<unknown>(null);
  const change = (work: Promise<unknown>) => void work.then(() => (setFailure(null), again()), setFailure);
  const admin = me.value?.known && me.value.role === "admin";
  return (
    <div class="page projects">
      <h1>Projects</h1>
      <p class="dim">The members of a project, and admins, see the runs of its repositories; nobody else does. Runs of other repositories are open to everyone with a role.</p>
      {(failure ?? error) !== null && <Failed error={failure ?? error} again={again} />}
      {data?.length === 0 && (
        <Empty title={admin ? "No projects yet" : "You are in no project"} {...(admin ? { command: "cloister project set NAME --repo 'git.example.org/team/*'" } : {})} />
      )}
      {data?.map((project) => (
        <One key={project.name} project={project} admin={!!admin} change={change} />
      ))}
      {admin && <New change={change} />}
    </div>
  );
}

function One({ project, admin, change }: { project: Project; admin: boolean; change: (work: Promise<unknown>) => void }) {
  const [who, setWho] = useState("");
  const [level, setLevel] = useState<Level>("sees");
  const members = Object.entries(project.members).sort(([one], [other]) => one.localeCompare(other));
  const may = admin || project.members[me.value?.name ?? ""] === "administers";
  const set = (name: string, given: Level | null) => change(send("POST", path`/v1/projects/${project.name}/members`, { who: name, level: given }));
  return (
    <section aria-label={`Project ${project.name}`}>
      <h2>
        {shown(project.name)} <span class="dim">{plural(members.length, "member")}</span>
      </h2>
      <p class="repos">
        {project.repos.map((repo) => (
          <code key={repo}>{shown(repo)}</code>
        ))}
      </p>
      <ul class="plain-list">
        {members.map(([name, held]) => (
          <li key={name} class="member">
            <span>{shown(name)}</span>
            {may ? (
              <>
                <select aria-label={`What ${name} may do`} value={held} onChange={(event) => set(name, event.currentTarget.value as Level)}>
                  {LEVELS.map((one) => (
                    <option key={one}>{one}</option>
                  ))}
                </select>
                <button aria-label={`Remove ${name}`} onClick={() => set(name, null)}>
                  Remove
                </button>
              </>
            ) : (
              <span class="dim">{held}</span>
            )}
          </li>
        ))}
      </ul>
      {may && (
        <form
          class="member"
          onSubmit={(event) => {
            event.preventDefault();
            set(who.trim(), level);
            setWho("");
          }}
        >
          <input aria-label={`New member of ${project.name}`} placeholder="Person, or group:NAME" value={who} onInput={(event) => setWho(event.currentTarget.value)} />
          <select aria-label="What the new member may do" value={level} onChange={(event) => setLevel(event.currentTarget.value as Level)}>
            {LEVELS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
          <button disabled={!who.trim()}>Add</button>
        </form>
      )}
      {admin && (
        <p>
          <Command text={`cloister project rm ${project.name}`} />
        </p>
      )}
    </section>
  );
}

function New({ change }: { change: (work: Promise<unknown>) => void }) {
  const [name, setName] = useState("");
  const [repos, setRepos] = useState("");
  const listed = repos.split(/\s+/).filter(Boolean);
  return (
    <section aria-label="New project">
      <h2>New project</h2>
      <form
        class="member"
        onSubmit={(event) => {
          event.preventDefault();
          change(send("PUT", path`/v1/projects/${name.trim()}`, { repos: listed }));
          setName("");
          setRepos("");
        }}
      >
        <input aria-label="Name of the project" placeholder="Name" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        <input aria-label="Repositories" placeholder="git.example.org/team/*" value={repos} onInput={(event) => setRepos(event.currentTarget.value)} />
        <button disabled={!name.trim() || !listed.length}>Make</button>
      </form>
    </section>
  );
}
