"""Tools that a repository or the organisation declares: a command with a JSON Schema of its arguments.

Arguments reach the command as JSON on stdin, as variables and as single words of its command line; never through a shell.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from cloister.agent.tools._spawn import run_on_host
from cloister.agent.tools.api import (
    ARGUMENTS,
    AnyTool,
    Arguments,
    Observation,
    Show,
    Tool,
    ToolLayer,
    arguments_text,
    observe,
)
from cloister.agent.tools.bash import run_shown
from cloister.agent.tools.schema import schema_problem
from cloister.agent.tools.toolset import Offer, ToolPlace, check_name
from cloister.core.computer import WORK_DIR, Command, Computer
from cloister.core.errors import UserError, describe
from cloister.core.repository import parse_toml
from cloister.core.requests import DeclaredTool
from cloister.core.text import decode, harmless, one_line
from cloister.forge.read import folder_of

FOLDER = ".cloister/tools"
"""Where a repository declares its tools; read from the base commit: a run cannot change its own tools."""
FILE_BYTES = 65_536
FILES = 100
"""Files that are read."""
ARGUMENT_BYTES = 49_152
"""Of one call, as JSON: less than a pipe holds."""
_VARIABLE_BYTES = 16_384
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]")
_LANGUAGE = re.compile(
    r"(?:ba|da|z|k|mk|fi|c|tc|a)?sh|busybox|(?:python|pypy|perl|ruby|php|lua)[\d.]*|node|deno|bun"
)
"""Interpreters: a word of code follows an option, and what follows their script is data."""
_CLIENT = re.compile(r"psql|mysql|mariadb|su")
"""Programs with such an option anywhere."""
_TAKES_CODE = re.compile(r"ssh|[gmn]?awk|sed|sqlite3|eval|watch|parallel")
"""Programs of which any word may be code."""
_GIVES_CODE = re.compile(r"-[A-Za-z]*[ceEr]|--(?:command|eval|execute|expression|print|run)")
_WITH_VALUE = frozenset({"-o", "+o", "-O", "-W", "-X", "-I"})


@dataclass(frozen=True, slots=True)
class Declared:
    """One declaration that can be used."""

    name: str
    layer: ToolLayer
    source: str
    """The file, for people."""
    entry: DeclaredTool
    schema: Mapping[str, object]
    cwd: str = WORK_DIR

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode((self.name, self.entry))).hexdigest()[:16]

    @property
    def tool(self) -> AnyTool:
        """The tool. On the host it needs a rule, or a grant of the organisation's settings."""
        entry, on_host = self.entry, self.entry.where == "host"
        untrusted = on_host if entry.untrusted is None else entry.untrusted
        return Tool(
            name=self.name,
            description=entry.description,
            args=ARGUMENTS,
            schema=self.schema,
            target=arguments_text,
            run=_Run(self).on_host if on_host else _Run(self).inside,
            changes_files=not on_host and entry.changes_files,
            origin="server" if untrusted else "tool",
            grant=entry.grant or (None if on_host else "allow"),
            source=self.source,
            layer=self.layer,
            digest=self.digest,
        )


def declared(name: str, entry: DeclaredTool, layer: ToolLayer, source: str) -> Declared:
    """Check a declaration. Raises `UserError` (`bad_tool`) that names its source and what is wrong."""
    check_name(name, source)
    schema: dict[str, object] = dict(entry.arguments)
    if schema and "properties" not in schema and "type" not in schema:
        raise _bad(source, "`arguments` is a JSON Schema: put the arguments below [arguments.properties]")
    empty: dict[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}
    schema = empty | schema
    if problem := schema_problem(schema):
        raise _bad(source, problem)
    if harmless(entry.description) != entry.description:
        raise _bad(source, "the description has control or invisible characters")
    _check_command(entry.command, cast("Mapping[str, object]", schema["properties"]), source)
    if entry.where == "host" and layer == "repository":
        raise _bad(source, "only the organisation's settings may declare a tool of the host")
    if entry.where == "host" and not entry.command[0].startswith("/"):
        raise _bad(source, "a program on the host is named by its whole path")
    return Declared(name, layer, source, entry, schema)


def _check_command(command: Sequence[str], known: Mapping[str, object], source: str) -> None:
    if not command or not command[0] or any("\0" in word for word in command):
        raise _bad(source, "`command` is a list of words, the program first")
    used = {name for word in command for name in _PLACE.findall(word)}
    if unknown := sorted(used - set(known)):
        raise _bad(
            source, f"`command` uses the argument {unknown[0]!r}, which [arguments.properties] does not have"
        )
    if len({variable(name) for name in known}) < len(known):
        raise _bad(source, "two arguments have the same variable: rename one")
    if _PLACE.search(command[0]):
        raise _bad(source, "the program itself cannot be an argument")
    if (found := _code(command)) is not None:
        program, name = found
        raise _bad(
            source,
            f"{{{name}}} would be code of {program}: use the variable {variable(name)} or stdin in its place",
        )


def _code(command: Sequence[str]) -> tuple[str, str] | None:
    """An interpreter and the argument that it would run as code.

    SAFETY: words do not pass a shell, unless a word of the declaration is a shell's: `["sh", "-c", "deploy {to}"]`.
    """
    program = before = ""
    for word in command:
        name, place = word.rpartition("/")[2], _PLACE.search(word)
        if any(one.fullmatch(name) for one in (_LANGUAGE, _CLIENT, _TAKES_CODE)):
            program = name
        elif (
            place
            and program
            and (_TAKES_CODE.fullmatch(program) or _GIVES_CODE.fullmatch(before) or _GIVES_CODE.match(word))
        ):
            return program, place[1]
        elif _LANGUAGE.fullmatch(program) and word[:1] not in ("-", "+") and before not in _WITH_VALUE:
            program = ""  # its script, or the code
        before = word
    return None


def variable(name: str) -> str:
    """The variable that holds an argument."""
    return f"ARG_{_NOT_IN_NAMES.sub('_', name).upper()}"


def _bad(source: str, what: str) -> UserError:
    text = one_line(what, 300)
    return UserError("bad_tool", f"{source}: {text}" + ("" if text.endswith("?") else "."))


def read_tool(path: str, data: bytes, source: str = "") -> Declared:
    """Read one file of a repository. Raises `UserError` (`bad_tool`)."""
    source = source or path
    try:
        entry = msgspec.convert(parse_toml(data.decode("utf-8")), DeclaredTool)
    except msgspec.ValidationError as error:
        raise _bad(source, describe(error, DeclaredTool).rstrip(".")) from None
    except (ValueError, RecursionError) as error:
        raise _bad(source, f"it is not valid TOML ({error})") from None
    return declared(path.rpartition("/")[2].removesuffix(".toml"), entry, "repository", source)


def read_tools(files: Mapping[str, bytes], where: str = "") -> tuple[list[Declared], list[str]]:
    """The declarations of a repository's files, and one sentence for each that cannot be used."""
    found: list[Declared] = []
    problems: list[str] = []
    for path, data in sorted(files.items()):
        try:
            found.append(read_tool(path, data, f"{path}{where}"))
        except UserError as error:
            problems.append(error.message)
    return found, problems


def settings_tools(entries: Mapping[str, DeclaredTool], source: str) -> tuple[list[Declared], list[str]]:
    """The declarations of the organisation's settings, and one sentence for each that cannot be used."""
    found: list[Declared] = []
    problems: list[str] = []
    for name, entry in entries.items():
        try:
            found.append(declared(name, entry, "organisation", f"{source} [tool.{one_line(name, 64)}]"))
        except UserError as error:
            problems.append(error.message)
    return found, problems


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """A `ToolSource`: the tools of the settings, and those of the repository's base commit."""

    entries: Mapping[str, DeclaredTool]
    source: str
    """The file of the settings."""

    @asynccontextmanager
    async def __call__(self, place: ToolPlace) -> AsyncGenerator[Offer]:
        found, problems = settings_tools(self.entries, self.source)
        commit, directory = place.declared
        if commit:
            listed = await folder_of(place.bare, commit, FOLDER, ".toml", most=FILES, limit_bytes=FILE_BYTES)
            own, wrong = read_tools(listed.files, f"@{commit[:12]}")
            found += [replace(one, cwd=directory) for one in own]
            problems = [*problems, *listed.problems, *wrong]
        yield Offer(tuple(one.tool for one in found), tuple(problems))


# Calls


@dataclass(frozen=True, slots=True)
class _Run:
    one: Declared

    async def inside(self, computer: Computer, args: Arguments, show: Show) -> Observation:
        entry, cwd = self.one.entry, self.one.cwd
        try:
            argv, env, stdin = call_of(self.one, args)
        except UserError as error:
            return observe(False, error.message)
        command = Command(argv, cwd=cwd, env=env, seconds=entry.seconds, limit_bytes=entry.output_bytes)
        try:
            return await run_shown(computer, command, show, stdin)
        except UserError as error:  # there is no such program, or too many run
            return observe(False, error.message)

    async def on_host(self, computer: Computer, args: Arguments, show: Show) -> Observation:
        entry = self.one.entry
        try:
            argv, env, stdin = call_of(self.one, args)
            done = await run_on_host(argv, env, stdin, seconds=entry.seconds, limit_bytes=entry.output_bytes)
        except UserError as error:
            return observe(False, error.message)
        except OSError as error:
            return observe(False, f"{self.one.name} cannot be started: {error.strerror}.")
        show("out", done.output)
        end = f"[killed: {done.why}]" if done.why else f"[exit status {done.code}]"
        text = decode(done.output)
        return observe(done.code == 0, f"{text.rstrip()}\n{end}".lstrip(), done.code)


def call_of(one: Declared, args: Mapping[str, object]) -> tuple[tuple[str, ...], dict[str, str], bytes]:
    """The command line, the variables and the stdin of a call. Raises `UserError` (`bad_arguments`)."""
    stdin = arguments_text(args).encode()
    if len(stdin) > ARGUMENT_BYTES:
        raise UserError(
            "bad_arguments", f"The arguments of `{one.name}` have more than {ARGUMENT_BYTES:,} bytes."
        )
    texts = {name: _text(value) for name, value in args.items()}
    if wrong := next((name for name, text in texts.items() if "\0" in text), None):
        raise UserError("bad_arguments", f"The argument {one_line(wrong, 60)!r} has a NUL character.")
    # SAFETY: an argument that the schema does not have must not take the variable of one whose value it checks.
    known = cast("Mapping[str, object]", one.schema["properties"])
    env = {
        variable(name): text
        for name, text in texts.items()
        if name in known and len(text.encode()) <= _VARIABLE_BYTES
    }
    return tuple(_words(one, texts)), {"CLOISTER_TOOL": one.name, **env}, stdin


def _words(one: Declared, texts: Mapping[str, str]) -> Iterable[str]:
    """The words of the command line. A word that uses an argument which is not given is left out."""
    options = True
    for word in one.entry.command:
        options = options and word != "--"
        names = _PLACE.findall(word)
        if any(name not in texts for name in names):
            continue
        made = _PLACE.sub(lambda found: texts[found[1]], word)
        if names and options and made.startswith("-") and not word.startswith("-"):
            # SAFETY: a value must not become an option of the program.
            raise UserError(
                "bad_arguments",
                f"The argument {names[0]!r} begins with a dash, which `{one.name}` would read as an option.",
            )
        yield made


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
