// What stands where there is nothing, something failed, or something is on its way.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ApiError, sentence } from "../api/client";
import { Icon } from "./icons";

export function Failed({ error, again }: { error: unknown; again?: (() => void) | undefined }) {
  return (
    <div class="alert" role="alert">
      <Icon name="warn" />
      <p>
        {sentence(error)}
        {error instanceof ApiError && <code class="code">{error.code}</code>}
      </p>
      {again && <button onClick={again}>Try again</button>}
    </div>
  );
}

export function Empty({ title, children, command }: { title: string; children?: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
      {command && <Command text={command} />}
    </div>
  );
}

/** The command that does the same in a terminal. */
export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  return (
    <span class="command">
      <code>{text}</code>
      <button
        class="quiet"
        aria-label={`Copy: ${text}`}
        onClick={() => void navigator.clipboard?.writeText(text).then(() => setCopied(true))}
      >
        <Icon name={copied ? "check" : "copy"} />
      </button>
    </span>
  );
}
