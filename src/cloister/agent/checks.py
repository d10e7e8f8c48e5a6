"""Checks in the sandbox: run them, watch them, understand them."""

from collections.abc import Callable, Sequence

from cloister.core import limits
from cloister.core.commands import Command, Computer, Exited, Output, Stream, shell
from cloister.core.diagnosis import Diagnosis
from cloister.core.errors import UserError
from cloister.feedback.api import CheckOutput
from cloister.feedback.diagnose import diagnose
from cloister.feedback.discover import WANTED, discover
from cloister.feedback.flags import environment

ShowCheck = Callable[[str, Stream, bytes], None]
"""The check's command line, the stream and what arrived."""


async def find_checks(computer: Computer) -> tuple[str, ...]:
    """Which checks the repository in the sandbox has."""
    listed = await computer.run(
        Command(argv=("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), seconds=30)
    )
    names = [name for name in listed.out.decode("utf-8", errors="replace").split("\0") if name]
    contents: dict[str, str] = {}
    for name in WANTED:
        if name in names:
            try:
                data = await computer.read(name, limit_bytes=262_144)
            except UserError:
                continue
            contents[name] = data.decode("utf-8", errors="replace")
    return discover(names, contents)


async def run_checks(
    computer: Computer, checks: Sequence[str], place: str, show: ShowCheck
) -> tuple[Diagnosis, ...]:
    """Run each check to its end. `place` is new each time, so that no report is taken for another's."""
    return tuple(
        [
            await _run_check(computer, check, f"/tmp/.cloister-{place}-{number}.xml", show)  # noqa: S108
            for number, check in enumerate(checks)
        ]
    )


async def _run_check(computer: Computer, check: str, junit_path: str, show: ShowCheck) -> Diagnosis:
    out, err = bytearray(), bytearray()
    exited = Exited(None)
    command = shell(check, env=environment(junit_path), seconds=limits.CHECK_SECONDS)
    async with computer.start(command) as process:
        await process.send_eof()
        async for item in process:
            match item:
                case Output(stream, data):
                    (out if stream == "out" else err).extend(data)
                    show(check, stream, data)
                case Exited():
                    exited = item
    try:
        junit = await computer.read(junit_path, limit_bytes=limits.JUNIT_BYTES)
    except UserError:
        junit = None
    return diagnose(
        CheckOutput(
            command=check,
            exit_code=exited.code,
            killed=exited.killed,
            seconds=exited.seconds,
            out=bytes(out),
            err=bytes(err),
            reports=() if junit is None else (junit,),
        )
    )
