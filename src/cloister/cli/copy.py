"""`cloister sandbox cp` and `files`: files between this machine and a sandbox."""

import posixpath
import secrets
import shutil
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlencode

import msgspec
import typer

from cloister.cli.options import AsJson, SandboxName, settings_of

if TYPE_CHECKING:
    from cloister.cli.client import Client

_PIECE = 1_048_576


class Inside(NamedTuple):
    """A path in a sandbox."""

    sandbox: str
    path: str


class _Entry(msgspec.Struct, frozen=True):
    name: str
    kind: str
    size: int
    mode: int
    modified: float


def cp(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A path here, or ID:PATH in a sandbox.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="A path here, or ID:PATH in a sandbox.")],
) -> None:
    """Copy a file, or a directory with all that is in it, into or out of a sandbox."""
    from cloister.core.errors import UserError

    here, there = parse(source), parse(target)
    if isinstance(here, Inside) == isinstance(there, Inside):
        raise UserError(
            "bad_usage",
            "One of both is ID:PATH and the other a path here; write ./a:b for a name with a colon.",
        )
    client = _client(ctx, here.sandbox if isinstance(here, Inside) else there.sandbox)  # type: ignore[union-attr]
    if isinstance(there, Inside) and isinstance(here, Path):
        _put(client, here, _whole(client, there))
    elif isinstance(here, Inside) and isinstance(there, Path):
        _get(client, _whole(client, here), there)


def files(
    ctx: typer.Context,
    sandbox: SandboxName,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory inside.")] = ".",
    as_json: AsJson = False,
) -> None:
    """List a directory of a sandbox."""
    from cloister.core.text import one_line

    client = _client(ctx, sandbox)
    at = _whole(client, Inside(sandbox, path))
    reply = client.ask("GET", _address(at, "files/list"))
    if as_json:
        from cloister.cli.jsonl import put_json

        for each in client.decoded(list[dict[str, object]], reply):
            put_json(each)
        return
    for entry in client.decoded(tuple[_Entry, ...], reply):
        stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.modified))
        name = one_line(entry.name, 200) + ("/" if entry.kind == "dir" else "")
        print(f"{entry.kind:<5} {entry.mode:04o} {entry.size:>14,} {stamp} {name}")


def parse(text: str) -> "Inside | Path":
    """A path in a sandbox or one here. A name with a colon is one here when there is a slash before that."""
    head, colon, path = text.partition(":")
    return Inside(head, path or ".") if colon and head and "/" not in head else Path(text)


def _client(ctx: typer.Context, sandbox: str) -> "Client":
    from cloister.cli.client import Client, no_such_sandbox
    from cloister.cli.living import living

    place = living(settings_of(ctx).data_dir)
    if place is None:
        raise no_such_sandbox(sandbox)
    return Client(place)


def _whole(client: "Client", inside: Inside) -> Inside:
    return Inside(client.find_sandbox(inside.sandbox).id, inside.path)


def _address(inside: Inside, route: str) -> str:
    return f"/v1/sandboxes/{inside.sandbox}/{route}?{urlencode({'path': inside.path})}"


def _kind(client: "Client", inside: Inside) -> str | None:
    """What is there, through links; None when nothing is."""
    from cloister.core.errors import UserError

    try:
        # A trailing "/." is only there for directories, and for links to them.
        client.ask("GET", _address(Inside(inside.sandbox, posixpath.join(inside.path, ".")), "files/stat"))
    except UserError:
        pass
    else:
        return "dir"
    try:
        client.ask("GET", _address(inside, "files/stat"))
    except UserError as error:
        if error.code == "not_found":
            return None
        raise
    return "file"


def _put(client: "Client", source: Path, target: Inside) -> None:
    from cloister.core.errors import UserError

    if not source.exists():
        raise UserError("not_found", f"There is no {source} here.")
    kind = _kind(client, target)
    if target.path.endswith("/") or kind == "dir":
        target = Inside(target.sandbox, posixpath.join(target.path, source.resolve().name))
    if source.is_dir():
        with (
            client.sending("PUT", _address(target, "tree")) as body,
            tarfile.open(fileobj=body, mode="w|", format=tarfile.PAX_FORMAT) as tar,  # type: ignore[call-overload]
        ):
            tar.add(source, arcname=".")
        return
    mode = f"{source.stat().st_mode & 0o777:03o}"
    with source.open("rb") as file, client.sending("PUT", f"{_address(target, 'files')}&mode={mode}") as body:
        shutil.copyfileobj(file, body, _PIECE)


def _get(client: "Client", source: Inside, target: Path) -> None:
    from cloister.core.errors import UserError

    kind = _kind(client, source)
    if kind is None:
        raise UserError("not_found", f"There is no {source.path} in the sandbox.")
    if target.is_dir():
        name = posixpath.basename(posixpath.normpath(source.path))
        if name in ("", ".", "..", "/"):
            raise UserError("bad_usage", f"{source.path} has no name of its own: name the copy, too.")
        target = target / name
    if kind == "dir":
        _get_tree(client, source, target)
        return
    # Beside it first: a copy that breaks off is no copy.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with client.receiving(_address(source, "files")) as reply, draft.open("xb") as file:
            shutil.copyfileobj(reply, file, _PIECE)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _get_tree(client: "Client", source: Inside, target: Path) -> None:
    from cloister.cli.unpack import unpack
    from cloister.core.text import one_line

    with client.receiving(_address(source, "tree")) as reply:
        result = unpack(reply, target)
    for name in result.left_out[:10]:
        print(f"cloister: left out {one_line(name)}: no plain file, or it leads elsewhere.", file=sys.stderr)
    if len(result.left_out) > 10:
        print(f"cloister: left out {len(result.left_out):,} in all.", file=sys.stderr)
