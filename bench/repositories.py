"""Ordinary repositories, with nothing but `--repo`: plant a bug in one line, let a script repair it, print the table.

The repositories are brought beforehand (`--from DIR`, one git repository per name below, also as NAME/repo or NAME.git) and
never committed here; `--samples` adds the small ones that the tests have (workspaces and plain ones). Each is cloned, its line is changed and committed, and `cloister run` gets a scripted model that undoes the
change. A row says what was detected, how long set-up took, the baseline, and the outcome or why not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.whole.e2e.setup.ordinary import SINGLE, WORKSPACES, Sample

from cloister.testing.samples import SampleRepo

GIT = (
    "git",
    "-c",
    "user.name=Bench",
    "-c",
    "user.email=bench@example.org",
    "-c",
    "protocol.file.allow=always",
)
PROMPT = "The test suite fails. Find the cause and fix it."


class Case(NamedTuple):
    """A repository and the line that is broken in it."""

    name: str
    kind: str
    file: str
    good: str
    bad: str


CASES = (
    Case(
        "un33k+python-slugify",
        "tox, setup.py",
        "slugify/slugify.py",
        "text = text.lower()",
        "text = text.upper()",
    ),
    Case(
        "martinblech+xmltodict",
        "tox, one module",
        "xmltodict.py",
        "join((short_namespace, name))",
        "join((name, name))",
    ),
    Case(
        "r1chardj0n3s+parse",
        "pyproject",
        "parse.py",
        "return float(string[:-1]) / 100.0",
        "return float(string[:-1]) / 10.0",
    ),
    Case(
        "mahmoud+boltons",
        "tox, requirements",
        "boltons/mathutils.py",
        "return min(max(x, lower), upper)",
        "return max(x, lower)",
    ),
    Case(
        "pytest-dev+iniconfig",
        "src layout, hatch",
        "src/iniconfig/_parse.py",
        "return name.strip(), value.strip()",
        "return name.strip(), value",
    ),
    Case(
        "agronholm+typeguard",
        "src layout, groups",
        "src/typeguard/_utils.py",
        'return "None"',
        'return "Nothing"',
    ),
    Case(
        "pallets+itsdangerous",
        "uv lock",
        "src/itsdangerous/encoding.py",
        'urlsafe_b64encode(string).rstrip(b"=")',
        "urlsafe_b64encode(string)",
    ),
    Case(
        "pallets+click",
        "uv lock",
        "src/click/utils.py",
        'return " ".join(words[: i + 1])',
        'return " ".join(words[:i])',
    ),
    Case(
        "python-poetry+cleo",
        "poetry lock",
        "src/cleo/_utils.py",
        "math.ceil(secs / self.divisor)",
        "math.floor(secs / self.divisor)",
    ),
    Case("jonschlinkert+is-number", "npm, no lock", "index.js", "return num - num === 0;", "return true;"),
    Case(
        "micromatch+micromatch",
        "npm, mocha",
        "index.js",
        "result.filter(item => !omit.has(item))",
        "result.filter(item => item)",
    ),
    Case(
        "miguelgrinberg+microblog",
        "requirements, Flask",
        "app/models.py",
        "return f'https://www.gravatar.com/avatar/{digest}?d=identicon&s={size}'",
        "return f'https://www.gravatar.com/avatar/{digest}?s={size}'",
    ),
    Case(
        "encode+starlette",
        "requirements with itself",
        "starlette/_utils.py",
        "return path[len(root_path) :]",
        "return path[len(root_path) + 1 :]",
    ),
    Case(
        "arrow-py+arrow",
        "requirements/, flit",
        "arrow/util.py",
        "timestamp /= 1000\n",
        "timestamp /= 100\n",
    ),
    Case(
        "marshmallow-code+marshmallow",
        "src layout, extras",
        "src/marshmallow/utils.py",
        "return is_iterable_but_not_string(obj) and not isinstance(obj, Mapping)",
        "return is_iterable_but_not_string(obj)",
    ),
    Case(
        "expressjs+express",
        "npm, mocha, no lock",
        "lib/utils.js",
        "|| 'application/octet-stream'), params: {} }",
        "|| 'text/plain'), params: {} }",
    ),
    Case(
        "tj+commander.js",
        "npm, jest",
        "lib/suggestSimilar.js",
        "if (similar.length > 1) {",
        "if (similar.length > 2) {",
    ),
    Case("vercel+ms", "pnpm, jest", "src/index.ts", "      return n * w;", "      return n * d;"),
    Case(
        "colinhacks+zod",
        "pnpm workspace, vitest",
        "packages/zod/src/v4/core/util.ts",
        ".join(separator);",
        ".join();",
    ),
    Case("spf13+pflag", "Go module", "flag.go", "\tlist.Sort()\n", "\t_ = list\n"),
    Case("kokke+tiny-regex-c", "Make, with scripts", "re.c", "return isalpha(c);", "return isdigit(c);"),
    Case(
        "lukeed+clsx",
        "npm, uvu",
        "src/index.js",
        "if (typeof mix === 'string' || typeof mix === 'number') {",
        "if (typeof mix === 'string') {",
    ),
    Case(
        "sindresorhus+camelcase",
        "npm, ava and xo",
        "index.js",
        "const SEPARATORS = /[_.\\- ]+/;",
        "const SEPARATORS = /[_.\\-]+/;",
    ),
    Case(
        "unjs+defu", "pnpm, vitest", "src/defu.ts", "[...value, ...object[key]]", "[...object[key], ...value]"
    ),
    Case(
        "unjs+ufo", "pnpm, vitest", "src/utils.ts", 'input.endsWith("/") ? input : input + "/"', 'input + "/"'
    ),
    Case(
        "reduxjs+reselect",
        "yarn berry",
        "src/lruMemoize.ts",
        "if (entries.length > maxSize) {",
        "if (entries.length > maxSize + 1) {",
    ),
    Case("google+uuid", "Go module", "util.go", "return (b1 << 4) | b2,", "return (b1 << 4) & b2,"),
    Case("gorilla+mux", "Go module", "mux.go", 'np += "/"', 'np += ""'),
    Case("google+shlex", "Go module", "shlex.go", "return a.value == b.value", "return a.value != b.value"),
    Case(
        "mitchellh+go-wordwrap",
        "Go module",
        "wordwrap.go",
        "if current+spaceBufLen > lim {",
        "if current > lim {",
    ),
    Case(
        "rapidfuzz+strsim-rs",
        "Cargo",
        "src/lib.rs",
        "sim + 0.1 * prefix_length as f64",
        "sim + 0.2 * prefix_length as f64",
    ),
    Case("withoutboats+heck", "Cargo", "src/snake.rs", 'write!(f, "_")', 'write!(f, "-")'),
    Case(
        "servo+rust-fnv",
        "Cargo",
        "lib.rs",
        "        hash = hash.wrapping_mul(PRIME);\n        i += 1;",
        "        i += 1;",
    ),
    Case(
        "DaveGamble+cJSON",
        "CMake",
        "cJSON.c",
        "*output_pointer++ = '\\n';\n                    break;",
        "*output_pointer++ = '\\r';\n                    break;",
    ),
    Case(
        "BurntSushi+walkdir",
        "Cargo workspace",
        "src/lib.rs",
        "self.opts.min_depth = depth;",
        "self.opts.min_depth = depth + 1;",
    ),
    Case(
        "zserge+jsmn",
        "Make",
        "jsmn.h",
        "tok->start = tok->end = -1;\n  tok->size = 0;",
        "tok->start = tok->end = -1;\n  tok->size = 1;",
    ),
    Case(
        "akheron+jansson",
        "Autotools, CMake",
        "src/utf.c",
        "/* 3-byte sequence */\n        return 3;",
        "/* 3-byte sequence */\n        return 2;",
    ),
    Case("benhoyt+inih", "Meson", "ini.c", "dest[i] = src[i];", "dest[i] = src[0];"),
    Case(
        "jquense+yup",
        "yarn berry",
        "src/string.ts",
        "return value!.length >= this.resolve(min);",
        "return value!.length > this.resolve(min);",
    ),
    Case(
        "facebook+prop-types",
        "yarn 1",
        "factoryWithTypeCheckers.js",
        "return 'array';",
        "return 'object';",
    ),
    Case(
        "bombshell-dev+clack",
        "pnpm workspace",
        "packages/core/src/prompts/confirm.ts",
        "return this.cursor === 0;",
        "return this.cursor === 1;",
    ),
    Case("ruby+shellwords", "Bundler", "lib/shellwords.rb", ".join(' ')", ".join('')"),
    Case(
        "nvbn+thefuck",
        "requirements, setup.py",
        "thefuck/utils.py",
        "            return possibilities[0]",
        "            return possibilities[-1]",
    ),
    Case(
        "pytest-dev+pluggy",
        "src layout, tox",
        "src/pluggy/_tracing.py",
        'indent = "  " * self.indent',
        'indent = " " * self.indent',
    ),
    Case(
        "modelcontextprotocol+servers",
        "monorepo, npm workspace",
        "src/filesystem/path-utils.ts",
        ".trim()",
        "",
    ),
    Case(
        "golang+example",
        "Go, several modules",
        "hello/reverse/reverse.go",
        "r[i], r[j] = r[j], r[i]",
        "r[i], r[j] = r[i], r[j]",
    ),
    Case(
        "doctrine+inflector",
        "Composer",
        "lib/Doctrine/Inflector/Inflector.php",
        "return lcfirst($this->classify($word));",
        "return $this->classify($word);",
    ),
    Case(
        "apache+commons-cli",
        "Maven",
        "src/main/java/org/apache/commons/cli/Util.java",
        "return str == null || str.isEmpty();",
        "return str == null;",
    ),
)


def sample(one: Sample, at: Path) -> tuple[Case, Path]:
    """Write a repository of the tests."""
    repo = SampleRepo(at / "samples" / one.name)
    for name, text in one.files.items():
        repo.write(name, text)
    repo.commit("base")
    return Case(one.name, one.kind, one.file, one.good, one.bad), repo.path


class Row(NamedTuple):
    name: str
    kind: str
    detected: str
    built: str
    baseline: str
    outcome: str
    why: str
    again: float | None = None
    """Seconds from the command to the first reply of the model."""
    first: float | None = None
    """The same for the run before it, which made the environment."""


def source(at: Path, name: str) -> Path | None:
    tries = (at / name, at / name / "repo", at / f"{name}.git", at / name.replace("+", "/"))
    return next((path for path in tries if (path / "HEAD").exists() or (path / ".git").exists()), None)


def planted(case: Case, origin: Path, at: Path) -> Path:
    """A clone of the newest commit with the bug as one more commit, and the script that repairs it."""
    repo = at / case.name
    subprocess.run([*GIT, "clone", "-q", f"file://{origin}", str(repo)], check=True, capture_output=True)
    path = repo / case.file
    text = path.read_text()
    if case.good not in text:
        raise LookupError(f"{case.file} has changed: its line is not there")
    path.write_text(text.replace(case.good, case.bad, 1))
    subprocess.run([*GIT, "commit", "-qam", "Plant a bug"], cwd=repo, check=True)
    lines = text.split("\n")
    start = text[: text.index(case.good)].count("\n")
    end = start + case.good.count("\n") + 1
    good = "\n".join(lines[start:end])
    bad = good.replace(case.good, case.bad, 1)
    changed = path.read_text()
    while changed.count(bad) > 1 and start > 0:  # the edit must be unambiguous
        start -= 1
        good, bad = f"{lines[start]}\n{good}", f"{lines[start]}\n{bad}"
    call = {"tool": "edit", "path": case.file, "old": bad, "new": good}
    inline = ", ".join(f"{key} = {json.dumps(value)}" for key, value in call.items())
    (at / f"{case.name}.toml").write_text(
        f'[[reply]]\nsay = "I repair the line."\ncalls = [{{ {inline} }}]\n'
        + '[[reply]]\nsay = "Done."\ncalls = [{ tool = "finish", summary = "Repaired the line" }]\n' * 3
    )
    return repo


def run(case: Case, origin: Path, at: Path, data: Path, *, again: bool) -> Row:
    try:
        repo = planted(case, origin, at)
    except (LookupError, subprocess.SubprocessError) as error:
        return Row(case.name, case.kind, "", "", "", "not tried", str(error))
    row = one_run(case, repo, at, data)
    if not again:
        return row
    subprocess.run([*GIT, "branch", "-q", "-D", *branches(repo)], cwd=repo, check=False)
    return one_run(case, repo, at, data)._replace(built=row.built, first=row.again)


def branches(repo: Path) -> list[str]:
    """The branches that runs delivered."""
    argv = [*GIT, "for-each-ref", "--format=%(refname:short)", "refs/heads/cloister"]
    return subprocess.run(argv, cwd=repo, capture_output=True, text=True, check=True).stdout.split()


def one_run(case: Case, repo: Path, at: Path, data: Path) -> Row:
    argv = [sys.executable, "-m", "cloister", "--data-dir", str(data), "run", PROMPT]
    argv += ["--repo", str(repo), "--model", f"script:{at / case.name}.toml", "--json"]
    began = time.time()
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=3_600, cwd=at, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Row(case.name, case.kind, "", "", "", "not tried", "it took more than an hour")
    items = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    bodies: list[dict[str, Any]] = [item["body"] for item in items if "body" in item]
    (at / f"{case.name}.jsonl").write_text(done.stdout + done.stderr)

    def last(kind: str) -> dict[str, Any]:
        found = [body for body in bodies if body["type"] == kind]
        return found[-1] if found else dict[str, Any]()

    replied = [item["at"] for item in items if item.get("body", {}).get("type") == "ModelReplied"]
    env, base, end = last("EnvironmentPrepared"), last("BaselineTaken"), last("RunFinished")
    tools = [line.split(" because ")[0] for line in env.get("plan", [])]
    checks = last("ChecksChosen").get("checks", [])
    tests = [test for one in base.get("diagnoses", []) for test in one.get("tests", [])]
    failing = sum(test["status"] in ("failed", "error") for test in tests)
    passed = sum(test["status"] == "passed" for test in tests)
    built = f"{env['seconds']:.0f} s" if env.get("built") else "reused" if env else "nothing to do"
    why = env.get("problem") or end.get("reason") or done.stderr.strip()[-200:]
    not_run = [one.get("not_run") for one in base.get("diagnoses", []) if one.get("not_run")]
    outcome = end.get("outcome", f"exit {done.returncode}")
    shown = "" if outcome == "proven" else env.get("problem") or (not_run[0] if not_run else why)
    return Row(
        case.name,
        case.kind,
        ", ".join(dict.fromkeys(tools)) or ", ".join(checks) or "nothing",
        "failed" if env.get("problem") else built,
        f"{failing} red, {passed} green",
        outcome,
        " ".join(str(shown).split())[:300],
        replied[0] - began if replied else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="origin", type=Path, help="the directory with the repositories")
    parser.add_argument("--samples", action="store_true", help="also the small repositories of the tests")
    parser.add_argument("--data-dir", type=Path, help="a data directory to reuse; default: a new one")
    parser.add_argument("--only", action="append", default=[], help="a part of a name; may be repeated")
    parser.add_argument("--again", action="store_true", help="run each twice, and time the second")
    parser.add_argument("--keep", type=Path, help="keep the clones and the logs of the runs here")
    chosen = parser.parse_args()
    rows: list[Row] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="repositories-") as scratch:
        at = chosen.keep or Path(scratch) / "work"
        at.mkdir(parents=True, exist_ok=True)
        data = (chosen.data_dir or Path(scratch) / "data").absolute()
        data.mkdir(parents=True, exist_ok=True)
        places = [(case, source(chosen.origin.absolute(), case.name)) for case in CASES if chosen.origin]
        places += [sample(one, at.absolute()) for one in (*SINGLE, *WORKSPACES) if chosen.samples]
        if chosen.only:  # in the order in which they are named
            places = [found for part in chosen.only for found in places if part in found[0].name]
        for case, origin in places:
            missing = Row(case.name, case.kind, "", "", "", "not tried", "it was not brought here")
            row = run(case, origin, at.absolute(), data, again=chosen.again) if origin else missing
            rows.append(row)
            print(
                f"{row.name:24} {row.kind:20} {row.built:>14}  {row.baseline:22} {row.outcome:10} {row.detected[:60]}",
                flush=True,
            )
            if row.again is not None and (chosen.again or row.built == "reused"):
                print(
                    f"{'':24} environment reused: first reply of the model after {row.again:.1f} s"
                    + ("" if row.first is None else f", in the run before after {row.first:.1f} s"),
                    flush=True,
                )
            if row.why:
                print(f"{'':24} {row.why}", flush=True)
    tried = [row for row in rows if row.outcome != "not tried"]
    good = sum(row.outcome == "proven" for row in tried)
    print(f"{good} of {len(tried)} proven without configuration, in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
