// The worker of a JavaScript or TypeScript suite, inside the sandbox: `node --test`, mocha, jest or vitest. It speaks the
// protocol of python_worker.py. It works in a private copy: a candidate is written there, and a new process runs the tests.
"use strict";
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const readline = require("node:readline");
const { spawn } = require("node:child_process");
const { fileURLToPath } = require("node:url");

const ROOT = fs.realpathSync(process.cwd());
const SKIPPED = new Set([".git", "node_modules", "coverage"]);
const REPORTER = `export default async function* (source) {
  for await (const event of source) {
    if (event.type !== "test:pass" && event.type !== "test:fail") continue;
    const { name, nesting, file, details, skip, todo } = event.data;
    const error = details && details.error;
    const cause = (error && error.cause) || error;
    yield JSON.stringify({ name, nesting, file, kind: details && details.type, ok: event.type === "test:pass",
      skip: skip !== undefined || todo !== undefined, ms: (details && details.duration_ms) || 0,
      error: error ? String((cause && cause.name) || "Error") : "",
      message: error ? String((cause && cause.message) || cause).slice(0, 4000) : "",
      stack: error ? String((cause && cause.stack) || "").slice(0, 8000) : "" }) + "\\n";
  }
}`;
let work, tree, reporter, given, runner, started = 1;

const send = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const relative = (file) => path.relative(tree, file).split(path.sep).join("/");

function copy() {
  work = fs.mkdtempSync(path.join(os.tmpdir(), "repair-"));
  tree = path.join(fs.realpathSync(work), "tree");
  const linked = [];
  fs.cpSync(ROOT, tree, {
    recursive: true, verbatimSymlinks: true,
    filter: (source) => {
      const name = path.basename(source);
      if (name === "node_modules") linked.push(path.relative(ROOT, source));
      return !SKIPPED.has(name) || source === ROOT;
    },
  });
  for (const name of linked) fs.symlinkSync(path.join(ROOT, name), path.join(tree, name));
  reporter = path.join(work, "reporter.mjs");
  fs.writeFileSync(reporter, REPORTER);
}

const escaped = (name) => name.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
const bin = (...parts) => path.join(tree, "node_modules", ...parts);
// The program of a runner: that of the repository, else one of the machine.
function program(...parts) {
  if (fs.existsSync(bin(...parts))) return bin(...parts);
  const known = (process.env.PATH || "").split(":").map((folder) => path.join(folder, parts[0])).find((file) => fs.existsSync(file));
  return known ? fs.realpathSync(known) : bin(...parts);
}

// The arguments of node for each runner; `out` is the file of its report.
const COMMANDS = {
  node: ({ names, files }) => ["--test", `--test-reporter=${reporter}`, "--max-old-space-size=1024",
    ...(names || []).map((name) => `--test-name-pattern=/^${escaped(name)}$/`), ...(files || given)],
  mocha: ({ names, files, out }) => [program("mocha", "bin", "mocha.js"), "--reporter", "json", "--reporter-option", `output=${out}`,
    ...pattern("--grep", names), ...(files || given)],
  jest: ({ names, files, out, coverage }) => [program("jest", "bin", "jest.js"), "--json", `--outputFile=${out}`, "--runInBand", "--ci",
    ...pattern("--testNamePattern", names), ...(coverage ? ["--coverage", "--coverageReporters=json", `--coverageDirectory=${coverage}`] : ["--coverage=false"]),
    ...(files ? ["--runTestsByPath", ...files] : given)],
  vitest: ({ names, files, out, coverage }) => [program("vitest", "vitest.mjs"), "run", "--reporter=json", `--outputFile=${out}`,
    ...pattern("--testNamePattern", names),
    ...(coverage && (fs.existsSync(bin("@vitest", "coverage-v8")) || fs.existsSync(bin("@vitest", "coverage-istanbul")))
      ? ["--coverage.enabled", "--coverage.reporter=json", `--coverage.reportsDirectory=${coverage}`] : []), ...(files || given)],
};
const pattern = (option, names) => (names ? [option, `^(?:${names.map(escaped).join("|")})$`] : []);

// The tests of a report in one form.
function read(out, text) {
  if (runner === "node") {
    const events = [];
    for (const line of text.split("\n")) { try { events.push(JSON.parse(line)); } catch {} }
    return events.filter((one) => one.kind !== "suite" && one.file && path.resolve(tree, one.name) !== one.file);
  }
  let report;
  try { report = JSON.parse(fs.readFileSync(out, "utf8")); } catch { return []; }
  if (runner === "mocha") {
    const pending = new Set((report.pending || []).map((one) => one.fullTitle));
    return (report.tests || []).map(({ fullTitle, file, duration, err }) => ({ name: fullTitle, file, ok: !err.message && !err.stack,
      skip: pending.has(fullTitle), ms: duration || 0, error: err.name || "", message: String(err.message || "").slice(0, 4000), stack: String(err.stack || "").slice(0, 8000) }));
  }
  return (report.testResults || []).flatMap((file) => file.assertionResults.map((one) => {
    const said = ((one.failureMessages || [])[0] || "").replace(/\u001b\[[0-9;]{0,20}m/g, "").slice(0, 8000);
    return { name: [...one.ancestorTitles, one.title].join(" "), file: file.name, ok: one.status === "passed", skip: !["passed", "failed"].includes(one.status),
      ms: one.duration || 0, error: (/^\w{1,80}/.exec(said) || [""])[0], message: said.slice(0, 4000), stack: said };
  }));
}

function run({ names, files, seconds, coverage }) {
  const env = { ...process.env, CI: "1" };
  delete env.NODE_OPTIONS;
  delete env.NODE_TEST_CONTEXT;
  if (coverage && (runner === "node" || runner === "mocha")) env.NODE_V8_COVERAGE = coverage;
  const out = path.join(work, "report.json");
  fs.rmSync(out, { force: true });
  return new Promise((resolve) => {
    const child = spawn(process.execPath, COMMANDS[runner]({ names, files, out, coverage }), { cwd: tree, env, detached: true, stdio: ["ignore", "pipe", "ignore"] });
    let text = "", late = false;
    const timer = setTimeout(() => { late = true; try { process.kill(-child.pid, "SIGKILL"); } catch {} }, seconds * 1000);
    child.stdout.on("data", (data) => { if (text.length < 16e6) text += data; });
    child.on("close", () => { clearTimeout(timer); resolve({ events: read(out, text).filter((one) => one.file), late }); });
    child.on("error", () => resolve({ events: [], late }));
  });
}

const idOf = (event) => `${relative(event.file)}::${event.name}`;
const statusOf = (event) => (event.skip ? "skipped" : event.ok ? "passed" : "failed");

function frames(stack) {
  const found = [];
  for (const match of stack.matchAll(/\(?((?:file:\/\/)?\/[^\s:()]{1,400}):(\d{1,7}):\d{1,7}\)?/g)) {
    const file = match[1].startsWith("file://") ? fileURLToPath(match[1]) : match[1];
    if (file.startsWith(tree + path.sep) && !file.includes("node_modules")) found.push([relative(file), Number(match[2])]);
  }
  return found.reverse().slice(-20);
}

// The lines that ran, by the statements of a report of istanbul.
function stated(report) {
  const found = {};
  for (const [file, { statementMap, s }] of Object.entries(report)) {
    if (!file.startsWith(tree + path.sep) || file.includes("node_modules")) continue;
    const seen = new Set(Object.keys(s).filter((key) => s[key] > 0).map((key) => statementMap[key].start.line));
    if (seen.size) found[relative(file)] = [...seen].sort((a, b) => a - b);
  }
  return found;
}

// The lines that ran, by V8's block coverage: a line counts if the innermost range around its first character ran, or if a
// function that begins in it ran.
function lines(folder) {
  const found = {};
  const whole = path.join(folder, "coverage-final.json");
  if (fs.existsSync(whole)) return stated(JSON.parse(fs.readFileSync(whole, "utf8")));
  for (const name of fs.readdirSync(folder)) {
    let report;
    try { report = JSON.parse(fs.readFileSync(path.join(folder, name), "utf8")); } catch { continue; }
    for (const script of report.result || []) {
      if (!script.url.startsWith("file://")) continue;
      const file = fileURLToPath(script.url);
      if (!file.startsWith(tree + path.sep) || file.includes("node_modules") || !fs.existsSync(file)) continue;
      const text = fs.readFileSync(file, "utf8");
      const ranges = script.functions.flatMap((one) => one.ranges);
      const called = script.functions.filter((one) => one.functionName !== "" || one.ranges[0].startOffset > 0).flatMap((one) => one.ranges);
      const seen = new Set(found[relative(file)] || []);
      let offset = 0;
      text.split("\n").forEach((line, index) => {
        const at = offset + line.length - line.trimStart().length;
        offset += line.length + 1;
        const inside = called.some((range) => range.count > 0 && at <= range.startOffset && range.startOffset < offset);
        let best = null;
        for (const range of ranges) {
          if (range.startOffset <= at && at < range.endOffset && (!best || range.endOffset - range.startOffset <= best.endOffset - best.startOffset)) best = range;
        }
        if (inside || (line.trim() && best && best.count > 0 && called.includes(best))) seen.add(index + 1);
      });
      if (seen.size) found[relative(file)] = [...seen].sort((a, b) => a - b);
    }
  }
  return found;
}

const operations = {
  async open({ runner: name, args }) {
    [given, runner] = [args, name];
    copy();
    const begun = Date.now();
    const { events } = await run({ seconds: 120 });
    started = (Date.now() - begun) / 1000;
    send({ op: "ready", tests: [...new Set(events.map(idOf))], errors: [] });
  },
  async cover({ tests, seconds, each, trace }) {
    const end = Date.now() + seconds * 1000;
    let left = tests.length;
    if (!trace) {
      const files = [...new Set(tests.map((id) => id.slice(0, id.indexOf("::"))))];
      for (const event of (await run({ files, seconds })).events) {
        const id = idOf(event);
        if (tests.includes(id)) send({ op: "test", id, status: statusOf(event), seconds: event.ms / 1000, frames: frames(event.stack), error: event.error, message: event.message });
      }
      left = 0;
    }
    for (const id of trace ? tests : []) {
      if (Date.now() > end) break;
      const [file, name] = [id.slice(0, id.indexOf("::")), id.slice(id.indexOf("::") + 2)];
      const folder = fs.mkdtempSync(path.join(work, "cover-"));
      const { events, late } = await run({ names: [name], files: [file], seconds: Math.max(5, 3 * started, each * 10), coverage: folder });
      const event = events.find((one) => idOf(one) === id);
      send({ op: "test", id, status: late ? "late" : event ? statusOf(event) : "failed", seconds: event ? event.ms / 1000 : each,
        lines: lines(folder), frames: event ? frames(event.stack) : [], error: event ? event.error : "", message: event ? event.message : "" });
      fs.rmSync(folder, { recursive: true, force: true });
      left -= 1;
    }
    send({ op: "done", left });
  },
  async try({ path: file, text, stages }) {
    const full = path.join(tree, file);
    const original = fs.readFileSync(full);
    const results = {};
    let stage = 0, why = "";
    fs.writeFileSync(full, text);
    try {
      for (const [index, [names, each, whole]] of stages.entries()) {
        stage = index;
        const files = [...new Set(names.map((id) => id.slice(0, id.indexOf("::"))))];
        const { events, late } = await run({ names: names.map((id) => id.slice(id.indexOf("::") + 2)), files, seconds: Math.max(3 * started, Math.min(whole, 3 + 10 * each)) });
        for (const event of events) if (names.includes(idOf(event))) results[idOf(event)] = statusOf(event);
        if (late) why = "too slow";
        if (names.some((id) => results[id] !== "passed")) break;
      }
    } finally {
      fs.writeFileSync(full, original);
    }
    send({ op: "tried", results, stage, why });
  },
  async call() { send({ op: "called", digests: [] }); },
};

(async () => {
  const input = readline.createInterface({ input: process.stdin });
  try {
    for await (const line of input) {
      const { op, ...request } = JSON.parse(line);
      await operations[op](request);
    }
  } finally {
    if (work) fs.rmSync(work, { recursive: true, force: true });
  }
})();
