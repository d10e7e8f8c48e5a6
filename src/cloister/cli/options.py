"""Shared by the commands: settings, JSON output, common options and completion. Imports nothing slow."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO, TypeVar

import typer

from cloister.core.errors import UserError
from cloister.core.text import ACTS, harmless

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from cloister.app.settings import Settings
    from cloister.app.verbs.api import Verbs
    from cloister.core.requests import Attachment


T = TypeVar("T")


def root_option(ctx: typer.Context, name: str) -> str | None:
    """The value of a global option."""
    return ctx.find_root().params.get(name)


def settings_of(ctx: typer.Context) -> "Settings":
    """The settings of the chosen data directory, read once. Raises `UserError` (`bad_config`)."""
    from cloister.app.settings import read_settings

    root = ctx.find_root()
    if root.obj is None:
        chosen = root_option(ctx, "data_dir")
        root.obj = read_settings(data_dir=Path(chosen) if chosen else None)
    return root.obj


def local_only(ctx: typer.Context, command: str) -> None:
    """Raise `UserError` (`local_only`) if `--server` is given to a command that concerns this machine."""
    if root_option(ctx, "server"):
        raise UserError(
            "local_only", f"`cloister {command}` concerns this machine only: use it without --server."
        )


def put(
    *texts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False
) -> None:
    """Print texts without characters that a terminal acts on: they may come from a server or a guest."""
    print(harmless(sep.join(map(str, texts))), end=end, file=file, flush=flush)


def put_json(*records: object) -> None:
    """Print each record as one line of JSON and flush."""
    import json
    import re
    import sys

    import msgspec

    for record in records:
        line = msgspec.json.encode(record, enc_hook=str).decode("utf-8")
        # JSON may contain characters that a terminal would act on: print their escapes.
        sys.stdout.write(re.sub(f"[{ACTS}]", lambda found: json.dumps(found.group())[1:-1], line) + "\n")
        sys.stdout.flush()


def put_list(
    found: Sequence[T], as_json: bool, head: str, line: Callable[[T], str], empty: str | None = None
) -> None:
    """Print records as lines of JSON, or as a table with a head; without any, `empty` if it is given."""
    if as_json:
        put_json(*found)
    elif not found and empty is not None:
        put(empty)
    else:
        put(head, *map(line, found), sep="\n")


def typed(text: str) -> str:
    """A command-line argument as text: bytes that are not UTF-8 become replacement characters."""
    return text.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")


def _completion(
    find: "Callable[[Verbs], Awaitable[list[str]]]", *, quick: bool = False
) -> Callable[[typer.Context, str], list[str]]:
    """Complete with the names that `find` returns; an error completes nothing."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from cloister.cli.client.open import perform

        try:
            names = perform(ctx, find, quick=quick)
        except Exception:
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


async def _runs(verbs: "Verbs") -> list[str]:
    return ["last", *(row.id for row in await verbs.runs.list(50))]


async def _sandboxes(verbs: "Verbs") -> list[str]:
    return [info.id for info in await verbs.sandboxes.list()]


async def _snapshots(verbs: "Verbs") -> list[str]:
    return [info.name or info.id for info in await verbs.snapshots.list()]


async def _models(verbs: "Verbs") -> list[str]:
    return [model.name for model in await verbs.models.list()]


async def _tools(verbs: "Verbs") -> list[str]:
    from cloister.cli.request import repository
    from cloister.forge.plain_git import find_checkout

    try:
        path = repository(".")
        find_checkout(path)
    except UserError:
        path = None
    return [one.name for one in (await verbs.tools.list(path)).tools if one.kind != "server"]


async def _triggers(verbs: "Verbs") -> list[str]:
    return [one.name for one in await verbs.triggers.list()]


complete_run = _completion(_runs, quick=True)
complete_sandbox = _completion(_sandboxes)
complete_snapshot = _completion(_snapshots)
complete_model = _completion(_models)
complete_tool = _completion(_tools)
complete_trigger = _completion(_triggers)


def complete_harness(incomplete: str) -> list[str]:
    """The harnesses with a name, and the beginning of any other."""
    from cloister.core.attempts import ACP_PREFIX, CLAUDE, CODEX, NATIVE, OPENCODE, REPAIR

    return [
        one for one in (NATIVE, REPAIR, OPENCODE, CLAUDE, CODEX, ACP_PREFIX) if one.startswith(incomplete)
    ]


RUN_HELP = "A run: its id, a unique prefix of it, or 'last'."

RunName = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=complete_run)]
SandboxName = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A sandbox: its id or a unique prefix of it.", autocompletion=complete_sandbox
    ),
]
TierWish = Annotated[
    str,
    typer.Option("--tier", metavar="TIER", help="The isolation tier: auto, container, gvisor or microvm."),
]
MustPass = Annotated[
    list[str] | None,
    typer.Option(
        "--must-pass",
        metavar="TEST",
        help="A test, a test file or a check that must pass in the end; repeat for several.",
    ),
]
ExcludeTests = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude-test",
        metavar="PATTERN",
        help="Red tests that do not count, as in 'test_fetch*' or 'tests/net'; repeat for several.",
    ),
]
Accept = Annotated[
    Literal["proven", "unbroken", "unproven"],
    typer.Option(
        "--accept",
        metavar="OUTCOME",
        help="The weakest outcome that exits 0: proven, unbroken (nothing new is red) or unproven (no check could run).",
    ),
]
AllowTestChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-test-changes",
        metavar="PATTERN",
        help="Test files that the task may change, as in 'tests/test_old.py' or 'tests/**'; repeat for several.",
    ),
]
AttachedFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--attach",
        metavar="FILE",
        help="A picture or a text file for the model; repeat for several.",
        show_default=False,
    ),
]
AskTestChanges = Annotated[
    bool | None,
    typer.Option(
        "--ask-test-changes/--no-ask-test-changes",
        help="Ask a person if changes of tests are all that refuses the end. Default: if you watch at a terminal.",
        show_default=False,
    ),
]
Plain = Annotated[
    bool, typer.Option("--plain", help="Print lines only, as in a pipe, and leave the keyboard alone.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
After = Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only events after this number.")]
AttemptNumber = Annotated[
    int | None, typer.Option("--attempt", metavar="K", min=0, help="Only this attempt of the run.")
]


def read_attached(paths: Sequence[Path] | None) -> tuple[tuple[str, bytes], ...]:
    """The files of `--attach`, by name. Raises `UserError` (`no_such_file`, `attachment_too_large`)."""
    from cloister.core.limits import IMAGE_BYTES

    found: list[tuple[str, bytes]] = []
    for path in paths or ():
        try:
            with path.expanduser().open("rb") as file:
                data = file.read(IMAGE_BYTES + 1)
        except OSError as error:
            raise UserError("no_such_file", f"{path} cannot be attached: {error.strerror}.") from None
        if len(data) > IMAGE_BYTES:
            raise UserError(
                "attachment_too_large", f"{path} is too large: at most {IMAGE_BYTES:,} bytes can be attached."
            )
        found.append((path.name, data))
    return tuple(found)


async def attached(verbs: "Verbs", files: Sequence[tuple[str, bytes]]) -> "tuple[Attachment, ...]":
    """Store the files where the run will be driven."""
    return tuple([await verbs.runs.attach(name, data) for name, data in files])
