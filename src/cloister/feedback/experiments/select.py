"""Restricts a check to some of its test files, with everything else in its command line unchanged."""

import glob
import os.path
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from cloister.core.diagnosis import Check
from cloister.feedback.check_commands import specify, tool_of

_Parts = list[str]
_WORD = re.compile(r"""(?:[^\s'"\\;&|<>`$()#]|'[^']*'|"[^"$`\\]*")+""")
"""A word of a shell command, as written, without expansions other than file names."""
_PLAIN = re.compile(r"^[\w@%+=:,./-]+$")


def only(check: Check, files: Sequence[str], tests: Sequence[str] = ()) -> str | None:
    """The command line that runs only the tests in `files`, of these only `tests` where that is safe.

    A test is taken by a part of its name, so that the token of planted tests takes them all. It may run more than asked,
    never less, and does not stop at the first failing test. None if the command cannot be restricted.
    """
    if not files or any(_unsafe(name) for name in files):
        return None
    if check.run and (line := _package_script(check.run, files)) is not None:
        return line
    before, joint, last = check.command.rpartition(" && ")
    parts = _words(last)
    if not parts or re.search(r"\bcd\b", before):
        return None
    tool = tool_of(" ".join(re.sub(r"[^\w./=:@-]", "_", _value(part)) for part in parts))
    restricted = _TOOLS.get(tool or "", _refuse)(parts, files, tests)
    if restricted is None:
        return None
    return before + joint + _reporting(restricted)


def _reporting(parts: _Parts) -> str:
    """The line with report options. Words in quotes are hidden from `specify`, which leaves such lines alone."""
    hidden = {f"hidden_{index}_word": part for index, part in enumerate(parts) if not _PLAIN.match(part)}
    names = {part: name for name, part in hidden.items()}
    line = " ".join(names.get(part, part) for part in parts)
    line = specify(line).run or line
    return re.sub(r"\bhidden_\d+_word\b", lambda found: hidden.get(found[0], found[0]), line)


def _names(tests: Sequence[str]) -> list[str]:
    """The functions of the tests, in order; none if one of them is no plain name."""
    inner = [test.rpartition("::") for test in tests]
    names = {last.partition("[")[0].partition("/")[0].rpartition(".")[2] for _, _, last in inner}
    is_file = any(not mark and "/" in last for _, mark, last in inner)
    return [] if is_file or not all(re.match(r"^\w+$", name) for name in names) else sorted(names)


def _refuse(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    return None


def _words(command: str) -> _Parts:
    """The words as written; empty if the line is more than one simple command."""
    parts = _WORD.findall(command)
    return parts if _WORD.sub("", command).strip(" ") == "" else []


def _value(word: str) -> str:
    return shlex.split(word)[0] if "'" in word or '"' in word else word


def _unsafe(name: str) -> bool:
    """True for a path that a tool could take for an option or that leaves the repository."""
    return not name or name.startswith(("-", "/")) or ".." in name.split("/") or "\n" in name


def _quoted(words: Sequence[str]) -> _Parts:
    return [word if _PLAIN.match(word) else shlex.quote(word) for word in words]


def _after_tool(parts: _Parts, *names: str) -> int:
    """The index of the first word after the tool's name."""
    found = (index for index, part in enumerate(parts) if part.rpartition("/")[2] in names)
    return next(found, -1) + 1


def _without_paths(parts: _Parts, start: int, files: Sequence[str], flags: str) -> _Parts:
    """Drop the paths that contain the files. A word after an option stays: it may be the option's value.

    `flags` are the options that take no value.
    """
    kept = parts[:start]
    for index in range(start, len(parts)):
        part, before = parts[index], parts[index - 1] if index > start else ""
        is_value = before.startswith("-") and "=" not in before and not _is_flag(before, flags)
        if part.startswith("-") or is_value or not _holds(part, files):
            kept.append(part)
    return kept


def _is_flag(option: str, flags: str) -> bool:
    known = flags.split()
    if option in known:
        return True
    return not option.startswith("--") and all(f"-{letter}" in known for letter in option[1:])


def _holds(word: str, files: Sequence[str]) -> bool:
    path = os.path.normpath(_value(word).partition("::")[0])
    if path == "." or any(name == path or name.startswith(f"{path}/") for name in files):
        return True
    # `*` matches `/` here, as `**` does in a shell.
    return any(letter in path for letter in "*?[") and any(fnmatchcase(name, path) for name in files)


_PYTEST_FLAGS = (
    "-q -v -x -s -l -- --quiet --verbose --exitfirst --no-header --no-summary --strict-markers --lf --ff"
)


def _pytest(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    kept = _without_values(parts, ("-k",), but="not ")
    start = _after_tool(kept, "pytest")
    names = _names(tests) if "-k" not in kept else []
    chosen = ["-k", shlex.quote(" or ".join(names))] if names else []
    return [*_without_paths(kept, start, files, _PYTEST_FLAGS), "--maxfail=0", *chosen, *_quoted(files)]


_UNITTEST_FLAGS = "-q -v -b -c -f --quiet --verbose --buffer --catch --failfast --locals"


def _unittest(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    start = _after_tool(parts, "unittest")
    rest = [part for part in parts[start:] if part not in ("-f", "--failfast")]
    rest = _without_values(rest, ("-k", "-p", "--pattern"))
    chosen = [word for name in _names(tests) for word in ("-k", name)]
    bare = [part for part in rest if not _is_flag(part, _UNITTEST_FLAGS)]
    if not bare or bare[0] == "discover":
        rest = [part for part in rest if part != "discover"]
        return [*parts[:start], "discover", *rest, *chosen, "-p", shlex.quote(_pattern(files))]
    if any(part.startswith("-") for part in bare):
        return None
    flags = [part for part in rest if part not in bare]
    if all(part.endswith(".py") for part in bare):
        return [*parts[:start], *flags, *chosen, *_quoted(files)]
    return [*parts[:start], *flags, *chosen, *_quoted([_module(name) for name in files])]


def _module(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


def _pattern(files: Sequence[str]) -> str:
    """A pattern that matches the names of all files, and perhaps of more."""
    names = sorted({name.rpartition("/")[2] for name in files})
    if len(names) == 1:
        return glob.escape(names[0])
    first, last = names[0], names[-1]
    same = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    return glob.escape(first[:same]) + "*.py"


_SCRIPT_FLAGS = (
    "--test --bail -b --recursive --coverage --ci --silent --verbose --runInBand -i --no-cache --watch=false "
    "--experimental-vm-modules run --exit --color --no-color --passWithNoTests"
)
_SLOWLY = {"jest": "--bail=0", "vitest": "--bail=0", "mocha": "--no-bail"}
"""The options with which a runner does not stop at the first failing test."""


_BY_NAME = {
    "jest": ("-t", "--testNamePattern"),
    "vitest": ("-t", "--testNamePattern"),
    "mocha": ("-g", "--grep", "-f", "--fgrep"),
    "node": ("--test-name-pattern",),
}
"""The options that select tests by name."""


def _script_runner(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    start = _after_tool(parts, "jest", "vitest", "mocha", "ava", "node")
    runner = parts[start - 1].rpartition("/")[2]
    if "--invert" not in parts:
        parts = _without_values(parts, _BY_NAME.get(runner, ()))
        start = _after_tool(parts, runner)
    rest = _without_paths(parts, start, files, _SCRIPT_FLAGS)
    if "--" in rest:
        return None
    if runner in _SLOWLY:
        rest = [*_without_options(rest, "-b", "--bail"), _SLOWLY[runner]]
        if tests and "--invert" not in parts:
            titles = {re.split(r"::| > ", test)[-1] for test in tests}
            escaped = (re.sub(r"([\\()\[\]{}+*?^$|.])", r"\\\1", title) for title in sorted(titles))
            rest += [_BY_NAME[runner][0], shlex.quote("|".join(escaped))]
    if runner == "jest":
        # Without the option, jest takes the paths for regular expressions.
        rest.append("--runTestsByPath")
    return [*rest, *_quoted(files)]


def _without_values(parts: _Parts, options: Sequence[str], but: str = "\0") -> _Parts:
    """Drop the options and their values, except values that contain `but`."""
    kept: _Parts = []
    skip = False
    for index, part in enumerate(parts):
        name, joined, value = part.partition("=")
        following = parts[index + 1] if index + 1 < len(parts) else ""
        if skip:
            skip = False
        elif name in options and but not in (value if joined else following):
            skip = not joined
        else:
            kept.append(part)
    return kept


def _without_options(parts: _Parts, *options: str) -> _Parts:
    """Drop the options, and a number after one."""
    return [
        part
        for index, part in enumerate(parts)
        if part not in options and not (index and parts[index - 1] in options and part.isdigit())
    ]


_MANAGERS = re.compile(r"^(?:npm|pnpm|yarn|bun) ")
_REPORTS = {"jest": " --json --outputFile=", "vitest": " --outputFile.json="}
"""The report options from which the runner behind a script is known."""


def _package_script(run: str, files: Sequence[str]) -> str | None:
    runner = next((name for name, option in _REPORTS.items() if option in run), None)
    if runner is None or not _MANAGERS.match(run):
        return None
    if runner == "jest":
        files = [re.sub(r"([\\()\[\]{}+*?^$|])", r"\\\1", name) for name in files]
    return " ".join([run, _SLOWLY[runner], *_quoted(files)])


_GO_FLAGS = "-v -race -short -cover -json -failfast -benchmem -a -x -trimpath -msan -asan"


def _go(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    start = _after_tool(parts, "test")
    kept = parts[:start]
    skip = False
    for index in range(start, len(parts)):
        part, before = parts[index], parts[index - 1]
        if part in ("-args", "--args"):
            return None
        is_value = index > start and before.startswith("-") and "=" not in before
        is_value = is_value and not _is_flag(before, _GO_FLAGS)
        selects = re.match(r"^--?(?:run|failfast)(?:=|$)", part)
        if selects:
            skip = "=" not in part and not part.endswith("failfast")
        elif skip:
            skip = False
        elif part.startswith("-") or is_value or not re.match(r"^\.|.*\.\.\.$", part):
            kept.append(part)
    if names := _names(tests):
        kept += ["-run", shlex.quote("|".join(names))]
    places = sorted({name.rpartition("/")[0] for name in files})
    return [*kept, *_quoted([f"./{place}" if place else "." for place in places])]


_CARGO_FLAGS = "-q -v --quiet --verbose --all --workspace --all-features --no-default-features --release --locked --offline --frozen --no-fail-fast"


def _cargo(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    start = _after_tool(parts, "test")
    end = parts.index("--") if "--" in parts else len(parts)
    middle = parts[start:end]
    if any(not _is_flag(part, _CARGO_FLAGS) and not part.startswith("--features=") for part in middle):
        return None
    targets: _Parts = []
    for name in files:
        if found := re.match(r"^(?:.*/)?tests/(\w[\w-]*)(?:\.rs|/main\.rs)$", name):
            targets += ["--test", found[1]]
        elif name.endswith("src/lib.rs"):
            targets.append("--lib")
        else:
            return None  # a file of the library, of a program, or of both
    return [*parts[:end], *targets, *parts[end:]]


def _maven(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    classes = _classes(files)
    if classes is None:
        return None
    rest = [part for part in parts if not part.startswith(("-Dtest=", "-Dsurefire.skipAfterFailureCount"))]
    options = ("-DfailIfNoTests=false", "-Dsurefire.failIfNoSpecifiedTests=false")
    return [*rest, f"-Dtest={','.join(classes)}", *options]


def _gradle(parts: _Parts, files: Sequence[str], tests: Sequence[str]) -> _Parts | None:
    """Name the task of the project: other projects would fail because they have no such test."""
    classes = _classes(files)
    projects = {re.split(r"(?:^|/)src/", name, maxsplit=1)[0] for name in files}
    if classes is None or len(projects) != 1 or parts.count("test") != 1 or "--tests" in parts:
        return None
    task = ":".join(["", *filter(None, projects.pop().split("/")), "test"])
    start = _after_tool(parts, "gradle", "gradlew")
    if any(not part.startswith("-") and part != "test" for part in parts[start:]):
        return None
    chosen = [word for name in classes for word in ("--tests", f"'*{name}'")]
    at = parts.index("test")
    return [*parts[:at], task, *chosen, *(part for part in parts[at + 1 :])]


def _classes(files: Sequence[str]) -> list[str] | None:
    found = [re.fullmatch(r"([A-Za-z_]\w*)\.(?:java|kt|groovy)", name.rpartition("/")[2]) for name in files]
    below = all("src" in name.split("/")[:-1] for name in files)
    return [one[1] for one in found if one] if all(found) and below else None


_TOOLS: Mapping[str, Callable[[_Parts, Sequence[str], Sequence[str]], _Parts | None]] = {
    "pytest": _pytest,
    "unittest": _unittest,
    **dict.fromkeys(("jest", "vitest", "mocha", "ava", "node --test"), _script_runner),
    "go test": _go,
    "cargo test": _cargo,
    **dict.fromkeys(("mvn", "mvnw"), _maven),
    **dict.fromkeys(("gradle", "gradlew"), _gradle),
}
