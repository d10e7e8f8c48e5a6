// Calls to the server. The browser's login is a cookie, which scripts cannot read.

import { signal } from "@preact/signals";
import { settle } from "../router";
import type { Me, Problem } from "./records";

/** Why the server refused: a sentence for people, and a code that stays the same. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** What the page says when there is no login; empty while there is one. */
export const loggedOut = signal("");
export const me = signal<Me | null>(null);
/** Why it is not known yet who looks. */
export const unanswered = signal("");

/** Whether the same may succeed a little later. */
export function passing({ status }: ApiError): boolean {
  return status === 0 || status === 429 || status >= 500;
}

export function path(strings: TemplateStringsArray, ...values: Array<string | number>): string {
  return String.raw({ raw: strings }, ...values.map((value) => encodeURIComponent(value)));
}

async function request(method: string, address: string, body?: unknown, key?: string, raw?: Blob, signal?: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address, {
      method,
      ...(signal ? { signal } : {}),
      ...(raw ? { body: raw } : body === undefined ? {} : { body: JSON.stringify(body) }),
      headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...(key ? { "idempotency-key": key } : {}) },
    });
  } catch {
    throw new ApiError(0, "no_server", "The server does not answer: check that `cloister serve` runs.");
  }
  if (response.ok) return response;
  const problem = (await response.json().catch(() => null)) as Problem | null;
  const error = new ApiError(
    response.status,
    problem?.code ?? "http_error",
    problem?.message ?? `The server answered with status ${response.status}.`,
  );
  if (response.status === 401) loggedOut.value = error.message;
  throw error;
}

export async function get<T>(address: string, signal?: AbortSignal): Promise<T> {
  return (await (await request("GET", address, undefined, undefined, undefined, signal)).json()) as T;
}

export async function getFile(address: string, name: string): Promise<File> {
  const found = await (await request("GET", address)).blob();
  return new File([found], name, { type: found.type });
}

export async function getText(address: string): Promise<string> {
  return (await request("GET", address)).text();
}

export async function send<T>(method: "POST" | "PUT" | "DELETE", address: string, body?: unknown): Promise<T> {
  const response = await request(method, address, body);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** Sends a file as it is. */
export async function put<T>(address: string, file: Blob): Promise<T> {
  return (await (await request("PUT", address, undefined, undefined, file)).json()) as T;
}

let unsure: { what: string; key: string; since: number } | null = null;
const SAME_FOR = 120_000;

/** Tells a run something. Sent again because no answer came, it has the id of the first time, and the server does it once. */
export async function steer<T = unknown>(address: string, body?: unknown): Promise<T> {
  const what = JSON.stringify([address, body]);
  const again = unsure?.what === what && Date.now() - unsure.since < SAME_FOR;
  const mine = again ? unsure! : { what, key: crypto.randomUUID(), since: Date.now() };
  unsure = mine;
  let response: Response;
  try {
    response = await request("POST", address, body, mine.key);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 0 || error.status >= 500) throw error;
    if (unsure === mine) unsure = null;
    throw error;
  }
  if (unsure === mine) unsure = null;
  return (await response.json()) as T;
}

/** Exchanges the one-time secret of the address, if it has one, and finds out who looks. */
export async function begin(): Promise<void> {
  const shared = location.pathname === "/share" ? location.hash.slice(1) : "";
  if (shared) {
    history.replaceState(null, "", "/share");
    try {
      const { run } = await send<{ run: string }>("POST", "/v1/login/share", { secret: shared.slice(0, 200) });
      settle(`/runs/${run}`);
    } catch (error) {
      loggedOut.value = sentence(error);
      return;
    }
  }
  const secret = /^#login=([A-Za-z0-9_-]+)$/.exec(location.hash)?.[1];
  if (secret) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await send("POST", "/v1/login", { secret });
    } catch (error) {
      loggedOut.value = sentence(error);
      return;
    }
  }
  await meet();
}

/** Finds out who looks. A server that does not answer now is asked again; only one that refuses ends the login. */
async function meet(pause = 0.5): Promise<void> {
  try {
    me.value = await get<Me>("/v1/me");
    unanswered.value = "";
  } catch (error) {
    if (error instanceof ApiError && passing(error)) {
      unanswered.value = sentence(error);
      setTimeout(() => void meet(Math.min(15, pause * 2)), pause * 1000);
    } else loggedOut.value ||= sentence(error);
  }
}

/** Ends the login of this browser. */
export async function logOut(): Promise<void> {
  try {
    await send("POST", "/v1/logout");
    loggedOut.value = "You are logged out.";
  } catch (error) {
    loggedOut.value ||= sentence(error);
  }
}

export function sentence(error: unknown): string {
  return error instanceof Error ? error.message : "Something went wrong.";
}
