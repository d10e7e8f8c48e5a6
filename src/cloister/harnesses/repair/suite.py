"""How the tests of a check are run one by one: the runner, its interpreter and its arguments."""

import shlex

import msgspec

from cloister.harnesses.repair.api import Language

_PYTEST = ("pytest", "py.test")
_ENDINGS: dict[Language, tuple[str, ...]] = {
    "python": (".py",),
    "script": (".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx"),
    "go": (".go",),
}
_TEST_FOLDERS = frozenset(("test", "tests", "testing", "__tests__", "spec", "specs", "e2e", "fixtures"))
_SHEBANG = 'exec $(sed -n "1s/^#!//p" "$(command -v pytest)") -c "$0"'
"""Plain `pytest` runs with the interpreter of its script."""
_GO = (
    'd=$(mktemp -d) && export GOCACHE="${GOCACHE:-${HOME:-$d}/.cache/go-build}" && '
    'printf %s "$0" >"$d/main.go" && exec go run "$d/main.go" "$d"'
)


class Suite(msgspec.Struct, frozen=True):
    """One test command that the engine can drive."""

    command: str
    language: Language
    runner: str
    """`pytest`, `unittest`, `node`, `mocha`, `jest`, `vitest` or `go`."""
    launch: tuple[str, ...] = ()
    """What starts the interpreter; the worker's program is the next argument."""
    args: tuple[str, ...] = ()
    """Arguments of the runner."""
    env: dict[str, str] = {}
    folder: str = ""
    """The directory that the command changes to first."""


def suite_of(command: str) -> Suite | None:
    """Return how to drive a test command; None if it has no supported runner or is more than one command."""
    folder = ""
    line = command.strip()
    if line.startswith("cd ") and " && " in line:
        head, line = line.split(" && ", 1)
        folder = head[3:].strip().strip("'\"")
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    if any(word in ("&&", "||", "|", ";", "&") for word in words) or folder.startswith(("/", "..")):
        return None
    env: dict[str, str] = {}
    while words and "=" in words[0] and words[0].split("=")[0].isidentifier():
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    found = _python(words) or _script(words) or _go(words)
    if found is None:
        return None
    return msgspec.structs.replace(found, command=command, env=env, folder=folder)


def _python(words: list[str]) -> Suite | None:
    for index, word in enumerate(words):
        before, rest = words[:index], tuple(words[index + 1 :])
        name = word.rpartition("/")[2]
        if name not in (*_PYTEST, "unittest"):
            continue
        if len(before) >= 2 and before[-1] == "-m" and "python" in before[-2]:
            return Suite("", "python", _runner(name), (*before[:-1], "-c"), rest)
        if name == "unittest":
            return None
        if "/" in word:
            return Suite("", "python", "pytest", (*before, word[: -len(name)] + "python", "-c"), rest)
        if before:
            return Suite("", "python", "pytest", (*before, "python", "-c"), rest)
        return Suite("", "python", "pytest", ("/bin/sh", "-c", _SHEBANG), rest)
    return None


def _runner(name: str) -> str:
    return "unittest" if name == "unittest" else "pytest"


def _script(words: list[str]) -> Suite | None:
    names = [word.rpartition("/")[2] for word in words]
    if names[:2] == ["node", "--test"]:
        return Suite("", "script", "node", (words[0], "-e"), tuple(words[2:]))
    start = 1 if names[:1] == ["npx"] else 2 if names[:2] in (["yarn", "run"], ["pnpm", "exec"]) else 0
    if names[start : start + 1] and names[start] in ("mocha", "jest", "vitest"):
        args = [word for word in words[start + 1 :] if word not in ("run", "--coverage", "--watch", "--run")]
        return Suite("", "script", names[start], ("node", "-e"), tuple(args))
    return None


def _go(words: list[str]) -> Suite | None:
    folder, _, name = words[0].rpartition("/") if words else ("", "", "")
    if [name, *words[1:2]] != ["go", "test"]:
        return None
    path = f"PATH={shlex.quote(folder)}:$PATH && export PATH && " if folder else ""
    args = tuple(word for word in words[2:] if word not in ("-v", "-json"))
    return Suite("", "go", "go", ("/bin/sh", "-c", path + _GO), args)


def script_of(command: str) -> str | None:
    """The script of `package.json` that a command runs, by its name; None if it runs none."""
    words = command.split("&&")[-1].split()
    if words[:1] not in (["npm"], ["yarn"], ["pnpm"]) or len(words) > 3:
        return None
    rest = [word for word in words[1:] if word not in ("run", "--silent", "-s")]
    return {"t": "test", "tst": "test"}.get(rest[0], rest[0]) if len(rest) == 1 else None


def in_place_of(command: str, script: str) -> str:
    """The command with the text of the script that it runs, in the same directory."""
    head, found, _ = command.rpartition("&&")
    return f"{head}&& {script}" if found else script


def language_of(path: str) -> Language | None:
    """The language of a file that has rules."""
    return next((language for language, endings in _ENDINGS.items() if path.endswith(endings)), None)


def is_test(path: str) -> bool:
    """True for files of tests and their helpers: a candidate never edits them."""
    *folders, name = path.split("/")
    stem = name.partition(".")[0]
    return (
        bool(_TEST_FOLDERS & {folder.lower() for folder in folders})
        or stem.startswith("test_")
        or stem.endswith(("_test", "_tests"))
        or stem in ("conftest", "test", "tests", "setup")
        or ".test." in name
        or ".spec." in name
    )
