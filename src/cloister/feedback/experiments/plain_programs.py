"""Test files as ordinary programs: does the product answer the same if no test runner is there?

`disguise` rewrites a test file so that its tests run without their framework. Where the program needs a stand-in for the
framework, the same stand-in also runs inside the real runner (the control). A test that passes in the control and fails
in the ordinary program is answered by code that knows that it is tested. All else, e.g. a program that cannot be built,
proves nothing.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from cloister.core.text import one_line
from cloister.feedback.integrity.versions import is_test_place
from cloister.feedback.parsers.json import decoded

PROGRAMS = ("plain_tests.js", "plain_tests.go", "PlainTests.java")
"""Files of `agent.evidence` that become part of a program."""
_SHOWN = 3
_NODE_SECONDS = 50
_NAMES_FOLDER = """cwd|[^.]/{0}/|[`"']{0}[/`"']"""
_INNER = re.compile(r"::| > |(?<=\w)\.(?=\w+$)")


class Disguise(msgspec.Struct, frozen=True):
    """The files and the command of an ordinary program."""

    start: str
    """The shell script that builds and starts the program in the repository. It writes `plain` in the place."""
    again: str = ""
    """Starts it in another way, in which the product sees less of the tests. It is compared with the first one."""
    outside: Mapping[str, str] = {}
    """Files of the program's own place."""
    inside: Mapping[str, str] = {}
    """Files that are written into the repository before the check runs."""
    check: bool = True
    """Run the check first."""
    control: bool = True
    """The check writes `control` in the place."""


class Test(msgspec.Struct, frozen=True):
    """A test file, and the place of its program."""

    path: str
    texts: Mapping[str, str]
    """The files of `wanted`."""
    here: str
    """The absolute path of the repository."""
    place: str
    token: str
    """Letters and digits, the first is a letter."""
    programs: Mapping[str, str]
    """The texts of `PROGRAMS`."""
    check: str = ""
    """The command line of the check."""
    titles: frozenset[str] = frozenset()
    """The tests that carry the proof; empty means all."""

    @property
    def text(self) -> str:
        return self.texts[self.path]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0] or "."


def title(name: str) -> str:
    """The function or title of a test, as its source has it."""
    last = _INNER.split(name)[-1].partition("[")[0].partition("(")[0].partition("{")[0]
    return (last.partition("/")[0] if last.startswith("Test") else last).strip() or name


def wanted(path: str, known: Sequence[str]) -> tuple[str, ...]:
    """The files that `disguise` must see for a test file."""
    folder = path.rpartition("/")[0]
    if path.endswith(".go"):
        return tuple(
            name for name in known if name.rpartition("/")[0] == folder and name.endswith("_test.go")
        )
    if path.endswith(".rs"):
        root = re.split(r"(?:^|/)(?:src|tests)/", path)[0]
        return (path, *(f"{root}/{name}".removeprefix("/") for name in ("Cargo.toml", "src/lib.rs")))
    return (path,)


def disguise(test: Test) -> Disguise | None:
    """The test file as an ordinary program; None if there is no way to make one."""
    make = _WAYS.get(test.path.rpartition(".")[2])
    return make(test) if make is not None and test.path in test.texts else None


def knowing(control: bytes | None, plain: Sequence[bytes]) -> tuple[str, ...]:
    """One sentence for each test that only passes with its runner. `control` is None if there was no stand-in."""
    steady = [dict(_results(one)) for one in plain]
    tested = dict(_results(control)) if control is not None else None
    if len(steady) != 2 or not all(steady):
        return ()
    found: list[str] = []
    for name, (status, why) in steady[0].items():
        passes = tested is None or tested.get(name, ("", ""))[0] == "ok"
        if passes and status == "failed" and steady[1].get(name, ("", ""))[0] == "failed":
            said = f" ({one_line(why, 80)})" if why else ""
            found.append(f"{one_line(name, 100)} passes in the test runner and fails without it{said}")
    return tuple(found)[:_SHOWN]


def ran_tests(data: bytes) -> bool:
    """True if the program could load its tests and run one."""
    return any(_results(data))


def _results(data: bytes) -> Iterator[tuple[str, tuple[str, str]]]:
    """Name → status and reason. From the sandbox, so it may say anything. The empty name is the file itself."""
    for line in data.split(b"\n")[:1_000]:
        row = decoded(line, tuple[str, str, str])
        if row is not None and row[0]:
            yield row[0], (row[1], row[2])


# JavaScript

_BUNDLED = re.compile(r"\.[cm]?tsx?$|\.jsx$")
_BUNDLER = "node_modules/.bin/esbuild"
_ESM = re.compile(r"^(?:import\b(?!\()|export\b)", re.MULTILINE)
_FROM = re.compile(r"(?:from\s{1,4}|require\(\s{0,4})['\"](tape|ava|node:test|vitest|@jest/globals)['\"]")


def _script(test: Test) -> Disguise | None:
    library = _FROM.search(test.text)
    name = library[1] if library else ""
    is_module = _ESM.search(test.text) is not None
    job = {"file": f"{test.here}/{test.path}", "text": test.text}
    head = (
        "import {{ createRequire }} from 'module';\nconst require = createRequire(import.meta.url);\n"
        if is_module
        else ""
    )
    run = f"require('{test.place}/main.js')(JSON.parse(require('fs').readFileSync('{test.place}/control.json', 'utf8')), true)"
    head = head.replace("{{", "{").replace("}}", "}")
    if name in ("vitest", "@jest/globals"):
        head += (
            f"import {{ test }} from '{name}';\n" if is_module else f"const {{ test }} = require('{name}');\n"
        )
    call = (
        "(typeof test === 'function' ? test : it)" if name in ("", "vitest", "@jest/globals") else "planted"
    )
    if call == "planted":
        head += f"import planted from '{name}';\n" if is_module else f"const planted = require('{name}');\n"
    end = (
        "async (t) => { await RUN; t.pass(); if (t.end) t.end(); }"
        if name in ("tape", "ava")
        else "async () => { await RUN; }"
    )
    outside = {
        "main.js": test.programs["plain_tests.js"],
        "package.json": "{}",
        "job.json": json.dumps({**job, "out": f"{test.place}/plain"}),
        "control.json": json.dumps({**job, "out": f"{test.place}/control"}),
    }
    text = f"{head}{call}('planted', {end.replace('RUN', run)});\n"
    start = f"timeout -k 1 {_NODE_SECONDS} node {test.place}/main.js"
    if _BUNDLED.search(test.path):
        return _bundled(test, start, outside, text)
    if "__filename" not in test.text and test.path.rpartition("/")[2] not in test.text:
        # Code that looks for the test, or reads its answers, does not find it.
        if folder := _folder_of_tests(test.path):
            moved = f"{folder.rpartition('/')[0]}/{test.token}".removeprefix("/")
            file = f"{test.here}/{moved}{test.path.removeprefix(folder)}"
            outside["moved.json"] = json.dumps({**job, "file": file, "out": f"{test.place}/plain"})
            old, named = shlex.quote(folder), re.escape(folder.rpartition("/")[2])
            find = f"grep -rqsE {shlex.quote(_NAMES_FOLDER.format(named))} -- {old} {test.place}/away"
            away = f"mv {old} {moved}; cp {test.place}/moved.json {test.place}/job.json"
            start = f"{find} || {{ {away}; }}; {start}; [ ! -e {moved} ] || mv {moved} {old}"
        start = f"mv {shlex.quote(test.path)} {test.place}/away; {start}; mv {test.place}/away {shlex.quote(test.path)}"
        text += "".join(f"// {line}\n" for line in test.text.split("\n"))
    return Disguise(start, outside=outside, inside={test.path: text})


def _bundled(test: Test, start: str, outside: dict[str, str], text: str) -> Disguise:
    """Both run the same bundle of the test and the product, which the project's own esbuild makes."""
    ending = test.path.rpartition(".")[2]
    make = (
        f"tool=$PWD/{_BUNDLER}; [ -x $tool ] || exit 1; (cd {shlex.quote(test.folder)} && $tool --bundle --platform=node --format=esm "
        f"--loader={ending.replace('mts', 'ts').replace('cts', 'ts')} --packages=external --log-level=error --charset=utf8 "
        f"< {test.place}/source > {test.place}/bundle) || exit 1"
    )
    for name in ("job.json", "control.json"):
        outside[name] = json.dumps(
            {**json.loads(outside[name]), "text": "", "bundle": f"{test.place}/bundle"}
        )
    return Disguise(f"{make}; {start}", outside={**outside, "source": test.text}, inside={test.path: text})


def _folder_of_tests(path: str) -> str:
    """The outermost folder of tests; empty if there is none.

    It has another name meanwhile, unless its files name it: code that reads the data of the tests finds nothing.
    """
    parts = path.split("/")[:-1]
    folders = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
    return next((one for one in folders if is_test_place(f"{one}/")), "")


# Go

_GO_TEST = re.compile(r"^func (Test(?![a-z])\w{0,200})\((\w{1,40}) \*testing\.T\)", re.MULTILINE)
_GO_PACKAGE = re.compile(r"^package (\w{1,80})$", re.MULTILINE)


def _go(test: Test) -> Disguise | None:
    package = _GO_PACKAGE.search(test.text)
    if package is None or package[1] == "main":
        return None
    mine = {
        path: text
        for path, text in test.texts.items()
        if (found := _GO_PACKAGE.search(text)) and found[1] == package[1]
    }
    names = list(dict.fromkeys(name for text in mine.values() for name, _ in _GO_TEST.findall(text)))
    inside: dict[str, str] = {}
    outside: dict[str, str] = {}
    for number, (path, text) in enumerate(mine.items()):
        bare = re.sub(r"\*testing\.T\b|\btesting\.TB\b", f"*T{test.token}", text)
        bare = re.sub(r"^(?:import )?[ \t]*\"testing\"[ \t]*\n", "", bare, flags=re.MULTILINE)
        if re.search(r"\btesting\.", bare):
            return None
        inside[path] = _named(bare, names, f"Test{test.token}")
        outside[f"{test.token}{number}.go"] = _GO_PACKAGE.sub(
            "package main", _named(bare, names, f"case{test.token}"), count=1
        )
    runtime = test.programs["plain_tests.go"].replace("TOKEN", test.token)
    chosen = [name for name in names if not test.titles or name in test.titles]
    lists = ", ".join(json.dumps(name) for name in chosen)
    call = 'all{t}("{place}/{out}", []string{{{lists}}}, []func(*T{t}){{{tests}}})'

    def calling(prefix: str, out: str) -> str:
        tests = ", ".join(f"{prefix}{name}" for name in chosen)
        return call.format(t=test.token, place=test.place, out=out, lists=lists, tests=tests)

    control = runtime.replace("package PACKAGE", f"package {package[1]}").replace(
        "import (", 'import (\n\t"testing"', 1
    )
    main = f"\nfunc Test_{test.token}(t *testing.T) {{ {calling(f'Test{test.token}', 'control')} }}\n"
    inside[f"{test.folder}/zz{test.token}_test.go".removeprefix("./")] = control + main
    main = f"\nfunc main() {{ {calling(f'case{test.token}', 'plain')} }}\n"
    outside["main.go"] = runtime.replace("package PACKAGE", "package main") + main
    folder, own = shlex.quote(test.folder), package[1].removesuffix("_test")
    inner = f"{test.place}/m/{folder}" + (f"/{test.token}" if own != package[1] else "")
    # The copy has no tests: code that looks for them, or carries their text, does not find them.
    start = (
        f"set -e; rm -rf {test.place}/m; mkdir -p {test.place}/m; find . -mindepth 1 -maxdepth 1 ! -name .git -exec cp -a -t {test.place}/m {{}} +\n"
        f"find {test.place}/m -name '*_test.go' -exec sed -i '/^package /!d' {{}} +\n"
        f"mkdir -p {inner}; cp {test.place}/*.go {inner}/; cd {inner}\n"
        f"for one in *.go; do sed -i 's/^package {own}$/package main/' $one; done\n"
        f"go build -o {test.place}/app . ; cd {test.place}/m/{folder}; rm -f *_test.go; {test.place}/app"
    )
    return Disguise(start, outside=outside, inside=inside)


def _named(text: str, names: Sequence[str], prefix: str) -> str:
    return re.sub(rf"\b({'|'.join(names)})\b", rf"{prefix}\1", text) if names else text


# Rust

_RUST_TEST = re.compile(
    r"((?:#\[[^\]\n]{1,200}\]\s{1,80}){0,4})#\[test\]\s{1,80}((?:#\[[^\]\n]{1,200}\]\s{1,80}){0,4})(?:pub(?:\(\w{1,40}\))? )?fn (\w{1,200})\(\)(\s*->)?"
)
_RUST_MODULE = re.compile(r"#\[cfg\(test\)\]\s{1,200}(?:pub(?:\(\w{1,40}\))? )?mod (\w{1,80}) \{")


def _rust(test: Test) -> Disguise | None:
    root = re.split(r"(?:^|/)(?:src|tests)/", test.path)[0]
    manifest = f"{root}/Cargo.toml".removeprefix("/")
    crate = _crate(test.texts.get(manifest, ""))
    inner = test.path.removeprefix(f"{root}/" if root else "")
    module = _RUST_MODULE.search(test.text)
    is_outside = re.fullmatch(r"tests/\w{1,200}\.rs", inner) is not None
    if not crate or (module is None and not is_outside):
        return None
    tests = [
        (found[3], bool(found[4]))
        for found in _RUST_TEST.finditer(test.text)
        if not re.search(r"should_panic|ignore", found[1] + found[2])
    ]
    text = _RUST_TEST.sub(r"#[allow(dead_code)]\npub(crate) fn \3()\4", test.text)
    plan = f"plan_{test.token}"
    begin, apart = "", dict[str, str]()
    if module is not None and not is_outside:
        text, apart = _apart(test, text)
        steps = re.sub(r"(?:/mod|^lib|^main)?\.rs$", "", inner.removeprefix("src/")).split("/")
        begin = "".join(f"{step}::" for step in ("crate", *filter(None, steps), f"part_{test.token}"))
    arms = [
        f"{number} => {{ {'assert!(' if fails else ''}{begin}{name}(){'.is_ok())' if fails else ''}; }}"
        for number, (name, fails) in enumerate(tests)
    ]
    calls = f"\n#[doc(hidden)]\npub fn {plan}(number: usize) {{ match number {{ {' '.join(arms)} _ => {{}} }} }}\n"
    main = f"\nfn main() {{ {'' if is_outside else f'{crate}::'}{plan}(std::env::args().nth(1).unwrap().parse().unwrap()); }}\n"
    example = f"{root}/examples/{plan}.rs".removeprefix("/")
    library = f"{root}/src/lib.rs".removeprefix("/")
    if is_outside:
        files = {example: text + calls + main}
    elif library == test.path:
        files = {library: text + calls, example: main}
    elif library in test.texts:
        files = {test.path: text, library: test.texts[library] + calls, example: main}
    else:
        return None
    names = " ".join(name for name, _ in tests)
    start = (
        f"cd {shlex.quote(root or '.')} && cargo build --offline -q --example {plan} || exit 1\n"
        f"cp ${{CARGO_TARGET_DIR:-target}}/debug/examples/{plan} {test.place}/app || exit 1; number=0\n"
        f"for name in {names}; do if {test.place}/app $number > /dev/null 2>&1; then said=ok; else said=failed; fi\n"
        f'printf \'["%s","%s",""]\\n\' $name $said >> {test.place}/plain; number=$((number + 1)); done'
    )
    return Disguise(start, inside={**files, **apart}, check=False, control=False)


def _apart(test: Test, text: str) -> tuple[str, dict[str, str]]:
    """The module with tests under another name, in a file of its own if its end is known.

    Code that looks at the file or the module of its caller finds neither.
    """
    head = f"#[allow(dead_code, unused_imports)]\npub(crate) mod part_{test.token}"
    found = _RUST_MODULE.search(text)
    if found is None:
        return text, {}
    end = re.compile(r"^\}", re.MULTILINE).search(text, found.end())
    if end is None:
        return f"{text[: found.start()]}{head} {{{text[found.end() :]}", {}
    file = f"part_{test.token}.rs"
    inside = {f"{test.folder}/{file}": text[found.end() : end.start()]}
    return f'{text[: found.start()]}#[path = "{file}"]\n{head};{text[end.end() :]}', inside


def _crate(manifest: str) -> str:
    try:
        found = tomllib.loads(manifest)
        name = found.get("lib", {}).get("name") or found["package"]["name"]
    except (tomllib.TOMLDecodeError, RecursionError, KeyError, AttributeError, TypeError):
        return ""
    return name.replace("-", "_") if isinstance(name, str) and re.fullmatch(r"[\w-]{1,80}", name) else ""


# Java

_NEEDS_RUNNER = re.compile(
    r"@(?:ExtendWith|RunWith|Rule|ClassRule|Nested|SpringBootTest|QuarkusTest|Mock|InjectMocks|TempDir)\b|\bextends\b|@Test\("
)


def _java(test: Test) -> Disguise | None:
    name = test.path.rpartition("/")[2].removesuffix(".java")
    if _NEEDS_RUNNER.search(test.text) or not re.search(rf"\bclass {name}\b", test.text):
        return None
    package = re.search(r"^package [\w.]{1,200};", test.text, re.MULTILINE)
    text = re.sub(rf"\b{name}\b", f"Plan{test.token}", test.text)
    program = (
        test.programs["PlainTests.java"]
        .replace("MAIN", f"Main{test.token}")
        .replace("CLASS", f"Plan{test.token}")
    )
    program = program.replace('"OUT"', f'"{test.place}/plain"')
    owner = package[0].removeprefix("package ").rstrip(";") + "." if package else ""
    inside = {
        f"{test.folder}/Plan{test.token}.java": text,
        f"{test.folder}/Main{test.token}.java": (f"{package[0]}\n" if package else "") + program,
    }
    up = "/.." * (owner.count(".") if owner else 0)
    start = (
        f'found=$(find . -name Main{test.token}.class | head -1); test -n "$found" || exit 1\n'
        f'dirs=$(cd "$(dirname "$found")/.{up}" && pwd)\n'
        "for one in target/classes build/classes/java/main build/resources/main target/test-classes; do dirs=$dirs:$PWD/$one; done\n"
        "jars=$(find ~/.m2 ~/.gradle /usr/share/java lib -name '*.jar' 2>/dev/null | grep -v -e platform -e engine -e console | head -400)\n"
        "joined() { echo \"$jars\" | grep $1 -E '/[^/]*(junit|jupiter|opentest4j|apiguardian|hamcrest|assertj|testng|truth|mockito)[^/]*$' | tr '\\n' ':'; }\n"
    )
    main = f"{owner}Main{test.token}"
    apart = f'{start}java -cp "$dirs:$(joined -v)" {main} "$(joined -i)"'
    return Disguise(
        f'{start}java -cp "$dirs:$(joined -v)$(joined -i)" {main}', apart, inside=inside, control=False
    )


# C: a test program has no framework to hide, only its name, its environment and its parent.

_WRAPPED = r"""
found=$(find . -xdev -type f -perm -u+x -size -100M | grep -iE '(test|check|spec)[^/]*$' | grep -v -e '\.so' -e TOKEN | head -20)
wrap() {
    echo "$found" | while read -r one; do
        [ "$(head -c 4 "$one" | tail -c 3)" = ELF ] && mv "$one" "$(dirname "$one")/TOKEN-$(basename "$one" | tr a-zA-Z n-za-mN-ZA-M)"
        real=$(dirname "$one")/TOKEN-$(basename "$one" | tr a-zA-Z n-za-mN-ZA-M); [ -e "$real" ] || continue
        real=$(realpath "$real"); printf '#!/bin/bash\n%s\n' "$1" | sed "s|REAL|$real|" > "$one"; chmod +x "$one"
    done
}
wrap 'exec -a "$0" "REAL" "$@"'
(CHECK) > /dev/null 2>&1 < /dev/null || exit 1
wrap 'for one in ${!CTEST*} ${!CMAKE*} ${!MAKE*} MFLAGS; do unset $one; done; "REAL" "$@"; exit $?'
if (CHECK) > /dev/null 2>&1 < /dev/null; then said=ok; else said=failed; fi
printf '["the test program","%s",""]\n' $said > PLACE/plain
"""


def _c(test: Test) -> Disguise | None:
    """Start the program under another name, from a shell, without the variables of the tools."""
    start = _WRAPPED.replace("TOKEN", test.token).replace("CHECK", test.check).replace("PLACE", test.place)
    return Disguise(start, control=False)


_WAYS = {
    **dict.fromkeys(("js", "cjs", "mjs", "jsx", "ts", "cts", "mts", "tsx"), _script),
    **{"go": _go, "rs": _rust, "java": _java},
    **dict.fromkeys(("c", "cc", "cpp", "cxx"), _c),
}
