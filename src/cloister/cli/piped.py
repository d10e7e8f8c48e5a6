"""One command in a sandbox with our stdin, stdout and stderr."""

import sys
from typing import NamedTuple

import msgspec

from cloister.cli.client import Client
from cloister.cli.living import Place
from cloister.cli.terminal import Exited, status_of
from cloister.core.errors import UserError
from cloister.core.ids import SandboxId

STDIN_BYTES = 524_288
"""What fits into one request beside the command."""


class Wanted(NamedTuple):
    """What to run inside."""

    argv: tuple[str, ...]
    cwd: str
    user: str
    seconds: float


class _Executed(msgspec.Struct, frozen=True):
    exit_code: int | None
    signal: int | None
    killed: str | None
    stdout: str
    stderr: str


def run_piped(place: Place, sandbox: SandboxId, wanted: Wanted) -> int:
    """Run it to its end and pass on what it printed; returns its exit status."""
    command: dict[str, object] = {**wanted._asdict(), "stdin": _stdin()}
    client = Client(place)
    done = client.decoded(_Executed, client.exec(sandbox, command, wanted.seconds))
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    sys.stderr.write(done.stderr)
    return status_of(Exited(done.exit_code, done.signal, done.killed))


def _stdin() -> str:
    if sys.stdin is None or sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return ""
    data = sys.stdin.buffer.read(STDIN_BYTES + 1)
    if len(data) > STDIN_BYTES:
        raise UserError(
            "too_large", f"More than {STDIN_BYTES:,} bytes on stdin: put them into a file of the sandbox."
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError("bad_text", "What is on stdin is not UTF-8 text.") from None
