// A terminal in a sandbox. It is loaded when it is opened.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";

/**
 * The page's policy forbids style elements and attributes, and the terminal makes both. While one is open, the text of its
 * style elements goes into style sheets of the document, and its style attributes through the object model.
 */
function allowStyles(): () => void {
  const sheets: CSSStyleSheet[] = [];
  const usual = document.createElement;
  const make = (name: string, options?: ElementCreationOptions): HTMLElement => {
    // In place of a style element, even an empty one, an element that shows nothing.
    const element = usual.call(document, name === "style" ? "template" : name, options);
    if (name === "style") {
      const sheet = new CSSStyleSheet();
      sheets.push(sheet);
      document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
      Object.defineProperty(element, "textContent", { set: (css: string) => sheet.replaceSync(css), get: () => "" });
    } else if (name === "span") {
      element.setAttribute = (key: string, value: string) => {
        if (key === "style") element.style.cssText = value;
        else Element.prototype.setAttribute.call(element, key, value);
      };
    }
    return element;
  };
  Object.defineProperty(document, "createElement", { value: make, configurable: true });
  return () => {
    Reflect.deleteProperty(document, "createElement");
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => !sheets.includes(sheet));
  };
}

function theme() {
  const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return {
    background: colour("--back"), foreground: colour("--text"), cursor: colour("--accent"), selectionBackground: colour("--line"),
    red: colour("--bad"), green: colour("--good"), yellow: colour("--warn"), blue: colour("--busy"), cyan: colour("--ok"),
  };
}

const UNTAKEN = 1_048_576;
const EARLY = 4_096;

/** Opens a shell and shows it in `place`. Returns what ends both. `tell` says how it stands. */
export function openTerminal(place: HTMLElement, sandbox: string, command: string, tell: (state: string) => void): () => void {
  const forbid = allowStyles();
  const terminal = new Terminal({
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), fontSize: 13,
    theme: theme(), cursorBlink: true, screenReaderMode: true, scrollback: 5_000,
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(place);
  fit.fit();
  const socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/v1/sandboxes/${encodeURIComponent(sandbox)}/process`);
  socket.binaryType = "arraybuffer";
  const say = (message: unknown) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
  let underway = 0;
  /** Typed before the connection was open. */
  let early: Uint8Array<ArrayBuffer>[] = [];
  const send = (bytes: Uint8Array<ArrayBuffer>) => {
    underway += bytes.length;
    socket.send(bytes);
  };
  socket.onopen = () => {
    tell("");
    say({ start: { argv: ["/bin/sh", "-c", command], pty: { rows: terminal.rows, columns: terminal.cols }, env: { TERM: "xterm-256color" } } });
    early.forEach(send);
    early = [];
    terminal.focus();
  };
  socket.onmessage = ({ data }: MessageEvent<ArrayBuffer | string>) => {
    if (typeof data !== "string") {
      terminal.write(new Uint8Array(data).subarray(1));
      return;
    }
    const message = JSON.parse(data) as { taken?: number; exited?: { exit_code: number | null }; error?: { message: string } };
    if (message.taken) underway -= message.taken;
    if (message.exited) tell(`The shell ended with exit status ${message.exited.exit_code ?? "none"}.`);
    if (message.error) tell(message.error.message);
  };
  socket.onclose = (event) => tell(event.code === 1000 ? "The shell has ended." : event.reason || "The connection was lost.");
  const typed = terminal.onData((text) => {
    const bytes = new TextEncoder().encode(text);
    if (underway + bytes.length > UNTAKEN) return;
    if (socket.readyState === WebSocket.OPEN) send(bytes);
    else if (socket.readyState === WebSocket.CONNECTING && early.length < EARLY) early.push(bytes);
  });
  const sized = terminal.onResize(({ rows, cols }) => say({ resize: { rows, columns: cols } }));
  const watch = new ResizeObserver(() => fit.fit());
  watch.observe(place);
  return () => {
    watch.disconnect();
    typed.dispose();
    sized.dispose();
    socket.onclose = null;
    socket.close();
    terminal.dispose();
    forbid();
  };
}
