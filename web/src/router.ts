// Which page is shown: the path says which, the query how, the hash where in it.

import { signal } from "@preact/signals";

export const here = signal(location.pathname);
export const query = signal(new URLSearchParams(location.search));
export const hash = signal(location.hash.slice(1));

function read(): void {
  here.value = location.pathname;
  query.value = new URLSearchParams(location.search);
  hash.value = location.hash.slice(1);
}

export function go(address: string): void {
  if (address !== location.pathname + location.search + location.hash) history.pushState(null, "", address);
  read();
}

/** Changes the query or the hash without a step in the history. */
export function settle(address: string): void {
  history.replaceState(null, "", address);
  read();
}

export function start(): void {
  addEventListener("popstate", read);
  addEventListener("hashchange", read);
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a[href]");
    if (!(link instanceof HTMLAnchorElement) || event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || link.target || link.download) return;
    if (link.origin !== location.origin || link.pathname.startsWith("/v1/")) return;
    event.preventDefault();
    go(link.pathname + link.search + link.hash);
  });
}

/** A phone shows one part at a time. */
const screen = matchMedia("(max-width: 760px)");
export const narrow = signal(screen.matches);
screen.addEventListener("change", () => (narrow.value = screen.matches));
