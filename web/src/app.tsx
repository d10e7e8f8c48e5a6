// The frame around every page: navigation, what runs and asks, and the way back in when the login has ended.

import { useEffect, useState } from "preact/hooks";
import { get, loggedOut, logOut, me, unanswered } from "./api/client";
import type { LoginWays } from "./api/records";
import { Icon, type IconName } from "./parts/icons";
import { useKeys } from "./parts/keys";
import { Command, Empty } from "./parts/notes";
import { follow, overview, runs } from "./overview/live";
import { Overview } from "./overview/overview";
import { Palette } from "./palette/palette";
import { Help } from "./parts/help";
import { later } from "./parts/later";
import { Notify } from "./parts/notify";
import { go, here } from "./router";
import { RunPage } from "./run/run";
import { plural, shown } from "./text/format";

type Place = { path: string; title: string; icon: IconName; keys: string };

const PLACES: Place[] = [
  { path: "/", title: "Runs", icon: "runs", keys: "g r" },
  { path: "/new", title: "New run", icon: "plus", keys: "n" },
  { path: "/sandboxes", title: "Sandboxes", icon: "box", keys: "g s" },
  { path: "/compare", title: "Compare", icon: "fork", keys: "g v" },
  { path: "/policy", title: "Policy", icon: "shield", keys: "g p" },
  { path: "/audit", title: "Audit", icon: "list", keys: "g u" },
  { path: "/projects", title: "Projects", icon: "people", keys: "g o" },
  { path: "/budgets", title: "Budgets", icon: "wallet", keys: "g b" },
  { path: "/models", title: "Models", icon: "chip", keys: "g m" },
  { path: "/tools", title: "Tools", icon: "layers", keys: "g t" },
  { path: "/machine", title: "Machine", icon: "machine", keys: "g h" },
];

/** Pages that the list of runs does not need are loaded with the first visit. */
const LATER = {
  "/new": later(() => import("./new/new").then((found) => found.NewRunPage)),
  "/compare": later(() => import("./compare/compare").then((found) => found.Compare)),
  "/sandboxes": later(() => import("./sandboxes/sandboxes").then((found) => found.Sandboxes)),
  "/policy": later(() => import("./admin/policy").then((found) => found.Policy)),
  "/audit": later(() => import("./admin/audit").then((found) => found.Audit)),
  "/projects": later(() => import("./admin/projects").then((found) => found.Projects)),
  "/budgets": later(() => import("./admin/machine").then((found) => found.Budgets)),
  "/models": later(() => import("./admin/models").then((found) => found.Models)),
  "/tools": later(() => import("./admin/tools").then((found) => found.Tools)),
  "/machine": later(() => import("./admin/machine").then((found) => found.Machine)),
};
const OneSandbox = later(() => import("./sandboxes/sandboxes").then((found) => found.Sandbox));

function page(path: string) {
  const run = /^\/runs\/([^/]+)$/.exec(path)?.[1];
  if (run) return <RunPage key={run} run={decodeURIComponent(run)} />;
  if (path === "/") return <Overview />;
  const sandbox = /^\/sandboxes\/([^/]+)$/.exec(path)?.[1];
  if (sandbox) return <OneSandbox key={sandbox} id={decodeURIComponent(sandbox)} />;
  const Page = LATER[path as keyof typeof LATER];
  if (Page) return <Page />;
  return (
    <Empty title="There is no such page">
      <a href="/">To the runs</a>
    </Empty>
  );
}

export function App() {
  const [menu, setMenu] = useState(false);
  const path = here.value;
  useEffect(() => setMenu(false), [path]);
  useKeys(PLACES.map((place) => ({ keys: place.keys, does: `to ${place.title.toLowerCase()}`, run: () => go(place.path) })));
  if (loggedOut.value) return <LoggedOut />;
  // Someone whom only projects or links let in has no use for the pages of the server.
  const places = me.value?.known === false ? PLACES.filter((place) => ["/", "/new", "/compare", "/projects"].includes(place.path)) : PLACES;
  return (
    <div class={menu ? "shell menu-open" : "shell"}>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        To the content
      </a>
      <header class="top">
        <button class="quiet menu" aria-label="Menu" aria-expanded={menu} onClick={() => setMenu(!menu)}>
          <Icon name="menu" />
        </button>
        <a class="brand" href="/">
          Cloister
        </a>
        <Palette places={places} />
        <Live />
      </header>
      <nav class="side" aria-label="Pages">
        {places.map((place) => (
          <a key={place.path} href={place.path} aria-current={place.path === path || (place.path !== "/" && path.startsWith(`${place.path}/`)) || (place.path === "/" && path.startsWith("/runs/")) ? "page" : undefined}>
            <Icon name={place.icon} />
            {place.title}
          </a>
        ))}
        <Me />
      </nav>
      <main id="main" tabIndex={-1}>
        {page(path)}
      </main>
      <Help />
    </div>
  );
}

/** What runs and what asks, on every page. */
function Live() {
  useEffect(follow, []);
  const running = runs.value?.filter((row) => row.state === "running") ?? [];
  const asks = running.filter((row) => row.asks > 0);
  const lost = overview?.line.value.state === "lost" && runs.value !== null;
  return (
    <div class="live" role="status">
      {(lost || unanswered.value) && <span class="warn" title={unanswered.value}>The server does not answer</span>}
      {running.length > 0 && (
        <span class="busy">
          <Icon name="dot" /> {running.length} <span class="words">running</span>
        </span>
      )}
      {asks.length > 0 && (
        <a class="warn" href={asks.length === 1 ? `/runs/${asks[0]!.id}` : "/"}>
          <Icon name="question" /> {plural(asks.length, "run")} <span class="words">ask{asks.length === 1 ? "s" : ""} you</span>
        </a>
      )}
    </div>
  );
}

/** Who looks, and the way out. */
function Me() {
  if (!me.value) return <span class="me" />;
  return (
    <span class="me">
      {shown(me.value.name)}
      {me.value.known && `, ${me.value.role}`}{" "}
      <Notify />
      <button class="quiet" onClick={() => void logOut()}>
        Log out
      </button>
    </span>
  );
}

function LoggedOut() {
  const [provider, setProvider] = useState<string | null>(null);
  useEffect(() => {
    get<LoginWays>("/v1/login").then(
      (ways) => setProvider(ways.provider),
      () => undefined,
    );
  }, []);
  return (
    <main class="logged-out">
      <h1>Cloister</h1>
      <p>{loggedOut.value}</p>
      {provider && (
        <p>
          <a class="button primary" href={`/login/oidc?next=${encodeURIComponent(location.pathname + location.search)}`} target="_self">
            Log in with {shown(provider)}
          </a>
        </p>
      )}
      <p>{provider ? "Or this" : "This"} command prints an address that logs this browser in. It works once, within a minute.</p>
      <Command text="cloister open" />
    </main>
  );
}
