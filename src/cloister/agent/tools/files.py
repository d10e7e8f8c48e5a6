"""`read`, `write`, `edit`, `search`: files in the sandbox."""

import posixpath
from collections import Counter
from typing import Annotated

import msgspec
from msgspec import Meta

from cloister.agent.tools.api import Observation, Show, Tool, observe
from cloister.core.computer import Command, Computer
from cloister.core.errors import UserError
from cloister.core.text import bounded, decode, lines_of

_READ_BYTES = 4_194_304
_LINES = 400
_NEW_FILE_MODE = 0o644
_AROUND = 4
_PLACES = 20
_NEAREST_CHARS = 2_000
"""Limits of the excerpt shown when `old` is not found. Frequent lines count only for their first places."""


class ReadArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="Absolute, or relative to /work.")]
    offset: Annotated[int, Meta(description="First line.")] = 1
    limit: Annotated[int, Meta(description="Number of lines.")] = _LINES


class WriteArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    content: Annotated[str, Meta(description="The whole new content.")]


class EditArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    old: Annotated[str, Meta(description="The text to replace, exactly as in the file. It must occur once.")]
    new: str


async def _read(computer: Computer, args: ReadArgs, show: Show) -> Observation:
    try:
        data = await computer.read(args.path, limit_bytes=_READ_BYTES)
    except UserError as error:
        return observe(False, error.message)
    if b"\0" in data[:8192]:
        return observe(False, f"{args.path} is a binary file of {len(data)} bytes.")
    lines = [line.rstrip("\r\n") for line in lines_of(decode(data))]
    first = max(1, args.offset)
    chosen = lines[first - 1 : first - 1 + max(1, args.limit)]
    text = "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(chosen, first))
    left = len(lines) - (first - 1 + len(chosen))
    if left > 0:
        text += f"\n[{left} more lines]"
    return observe(True, text or "[empty]")


async def _mode(computer: Computer, path: str) -> int:
    """The mode to write with. An existing file keeps its own."""
    folder = posixpath.dirname(path) or "."
    try:
        entries = await computer.list(folder)
    except UserError:
        return _NEW_FILE_MODE
    name = posixpath.basename(path)
    return next((e.mode & 0o777 for e in entries if e.name == name and e.kind == "file"), _NEW_FILE_MODE)


async def _write(computer: Computer, args: WriteArgs, show: Show) -> Observation:
    try:
        data = args.content.encode("utf-8", errors="surrogateescape")
        await computer.write(args.path, data, mode=await _mode(computer, args.path))
    except UserError as error:
        return observe(False, error.message)
    return observe(True, f"Wrote {args.path}: {len(lines_of(args.content))} lines.")


async def _edit(computer: Computer, args: EditArgs, show: Show) -> Observation:
    try:
        data = await computer.read(args.path, limit_bytes=_READ_BYTES + 1)
        if len(data) > _READ_BYTES:
            return observe(False, f"{args.path} is larger than {_READ_BYTES} bytes. Edit it with bash.")
        old = args.old.encode("utf-8", errors="surrogateescape")
        count = data.count(old) if old else 0
        if count != 1:
            return observe(False, _not_once(args, count, data))
        if args.new == args.old:
            return observe(False, "`old` and `new` are equal. Nothing was changed.")
        new = args.new.encode("utf-8", errors="surrogateescape")
        await computer.write(args.path, data.replace(old, new), mode=await _mode(computer, args.path))
    except UserError as error:
        return observe(False, error.message)
    line = data[: data.index(old)].count(b"\n") + 1
    return observe(True, f"Edited {args.path} at line {line}.")


def _not_once(args: EditArgs, count: int, data: bytes) -> str:
    if not args.old:
        return "`old` is empty. Give the text to replace, or use write."
    if count == 0:
        there = nearest(args.old, data.decode("utf-8", errors="replace"))
        how = f"The closest text is\n{there}" if there else "Read the file and copy the text exactly."
        return f"`old` does not occur in {args.path}. {how}"
    return f"`old` occurs {count} times in {args.path}. Include more of the surrounding text."


def nearest(old: str, text: str) -> str:
    """The lines of `text` that `old` most probably refers to, or nothing if no line matches."""
    wanted = [line.strip() for line in lines_of(old)]
    there = text.split("\n")
    places: dict[str, list[int]] = {}
    for number, line in enumerate(there):
        if line.strip():
            places.setdefault(line.strip(), []).append(number)
    shifts = Counter(
        number - at for at, line in enumerate(wanted) for number in places.get(line, ())[:_PLACES]
    )
    if not shifts:
        return ""
    begin = max(0, shifts.most_common(1)[0][0] - 1)
    return bounded("\n".join(there[begin : begin + len(wanted) + _AROUND]), _NEAREST_CHARS)


READ = Tool(
    name="read",
    description="Read a text file, with line numbers.",
    args=ReadArgs,
    target=lambda args: args.path,
    run=_read,
    origin="repository",
)
WRITE = Tool(
    name="write",
    description="Create a file, or replace its whole content. Creates missing directories.",
    args=WriteArgs,
    target=lambda args: args.path,
    run=_write,
    changes_files=True,
)
EDIT = Tool(
    name="edit",
    description="Replace a text that occurs exactly once in a file.",
    args=EditArgs,
    target=lambda args: args.path,
    run=_edit,
    changes_files=True,
)


_NO_MATCH = 1
"""ripgrep's exit code."""


class SearchArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description="A regular expression.")]
    path: Annotated[str, Meta(description="File or directory to search.")] = "."


async def _search(computer: Computer, args: SearchArgs, show: Show) -> Observation:
    layout = ("--line-number", "--no-heading", "--color=never", "--sort=path")
    limits = ("--max-columns=300", "--max-count=50")
    argv = ("rg", *layout, *limits, "--regexp", args.pattern, "--", args.path)
    finished = await computer.run(Command(argv=argv, seconds=30))
    code = finished.exited.code
    if code == _NO_MATCH:
        return observe(True, "No match.", code)
    if code == 0:
        return observe(True, decode(finished.out), code)
    return observe(False, decode(finished.err) or "The search was interrupted.", code)


SEARCH = Tool(
    name="search",
    description="Search files with a regular expression (ripgrep). Files that git ignores are skipped.",
    args=SearchArgs,
    target=lambda args: args.pattern,
    run=_search,
    origin="repository",
)
