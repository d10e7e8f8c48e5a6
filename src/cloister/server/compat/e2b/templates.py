"""Templates that clients of e2b build: steps that run in a sandbox, whose files become a snapshot of that name.

A build is a command in the background of its sandbox, so it needs no connection, and ends with the sandbox.
"""

import re
import time
from collections import OrderedDict
from contextlib import suppress
from secrets import token_hex
from typing import Annotated, Any, Literal

import anyio
import msgspec
from litestar import Request, Response, get, post, put
from litestar.datastructures import State
from litestar.params import PathParameter
from msgspec import Meta

from cloister.app.verbs.api import FileVerbs, SandboxVerbs, SnapshotVerbs, TemplateVerbs, Verbs
from cloister.app.verbs.records import NewCommand, NewSandbox
from cloister.core.errors import CloisterError, UserError
from cloister.server.auth import caller_of
from cloister.server.bodies import body_of, read_on_after_errors
from cloister.server.compat.connect import unary
from cloister.server.compat.e2b import at
from cloister.server.compat.e2b.control import furnish, opened, stamp
from cloister.server.compat.e2b.steps import ARCHIVES, Step, script
from cloister.server.routes import Given, Wait, Waiting, of
from cloister.server.routes.templates import log_progress

BUILDS = 32
"""Builds that are remembered; the one that was asked longest ago is forgotten."""
BUILD_SECONDS = 3_600.0
LOG_BYTES = 1_048_576
_LINES = 100
"""Lines of a log in one answer: as many as its client expects."""
_OWN_IMAGES = ("e2bdev/base", "e2bdev/code-interpreter")
_NUMBER = re.compile(r"[0-9]{1,11}")
_HASH = re.compile(r"[0-9a-f]{32,128}")
_Asked = Request[Any, Any, State]
Name = Annotated[str, PathParameter(description="A template's name.")]
Number = Annotated[str, PathParameter(description="A build's id, or the hash of an archive.")]


class _New(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(max_length=128)] = ""
    alias: Annotated[str, Meta(max_length=128)] = ""
    tags: list[str] = []


class _Start(msgspec.Struct, frozen=True, rename="camel"):
    from_image: str | None = None
    from_template: str | None = None
    steps: list[Step] = []
    start_cmd: str | None = None


class _Build(msgspec.Struct):
    template: str
    caller: str
    id: str = msgspec.field(default_factory=lambda: token_hex(16))
    sandbox: str = ""
    """Where it runs, or where its archives wait."""
    archives: set[str] = msgspec.field(default_factory=set[str])
    command: str = ""
    status: Literal["waiting", "building", "ready", "error"] = "waiting"
    reason: str = ""
    log: list[str] = msgspec.field(default_factory=list[str])
    asking: anyio.Lock = msgspec.field(default_factory=anyio.Lock)

    def waits_for(self, template: str, caller: str) -> bool:
        return (self.template, self.caller, self.status) == (template, caller, "waiting")


class Builds:
    """The builds of this process."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, _Build] = OrderedDict()

    def add(self, template: str, caller: str) -> tuple[_Build, list[_Build]]:
        """A new build, and those that it replaces: of the same name, or asked longest ago, whose sandboxes have to go.

        Archives are sent to a name, so only one build of a name and caller can wait for them.
        """
        gone = [one for one in self._all.values() if one.waits_for(template, caller)]
        for one in gone:
            one.status, one.reason = "error", "Another build of this name was begun."
        while len(self._all) >= BUILDS:
            gone.append(self._all.popitem(last=False)[1])
        made = _Build(template, caller)
        self._all[made.id] = made
        return made, gone

    def of(self, template: str, id: str, caller: str) -> _Build:
        """Raises `UserError` (`no_such_build`)."""
        found = self._all.get(id)
        if found is None or (found.template, found.caller) != (template, caller):
            raise _unknown(template)
        self._all.move_to_end(id)
        return found

    def waiting(self, template: str, caller: str) -> _Build:
        """The build that takes archives. Raises `UserError` (`no_such_build`)."""
        found = next((one for one in self._all.values() if one.waits_for(template, caller)), None)
        if found is None:
            raise _unknown(template)
        return found

    def inside(self, template: str, sandbox: str) -> _Build:
        """The build whose archives wait in a sandbox. Raises `UserError` (`no_such_build`)."""
        for one in self._all.values():
            if (one.template, one.sandbox) == (template, sandbox):
                return one
        raise _unknown(template)


def _unknown(template: str) -> UserError:
    return UserError("no_such_build", f"There is no such build of the template {template[:64]}.")


def _builds(request: _Asked) -> Builds:
    return request.app.state["builds"]


@post(at("/v3/templates"), **of(SnapshotVerbs.take, status=202), **opened())
async def new_build(request: _Asked, verbs: Given) -> dict[str, object]:
    wish = await unary(_New, request)
    name = wish.name or wish.alias
    if wish.tags or ":" in name:
        raise UserError("bad_name", "Templates have no tags here: put the version into the name.")
    build, gone = _builds(request).add(name, caller_of(request.scope).name)
    for one in gone:
        await _let_go(verbs, one)
    return {
        "templateID": name,
        "buildID": build.id,
        "public": False,
        "names": [name],
        "aliases": [name],
        "tags": [],
    }


async def _sandbox_of(verbs: Verbs, build: _Build) -> str:
    """The sandbox of a build, opened for its first archive."""
    async with build.asking:
        if build.status != "waiting":
            raise _unknown(build.template)
        if not build.sandbox:
            build.sandbox = await _opened(verbs, "base")
        return build.sandbox


async def _let_go(verbs: Verbs, build: _Build) -> None:
    """Remove the sandbox of a build, when it is there."""
    async with build.asking:
        if build.sandbox:
            with suppress(UserError):  # it may have ended by itself
                await verbs.sandboxes.destroy(build.sandbox)


async def _opened(verbs: Verbs, template: str) -> str:
    info, _ = await verbs.sandboxes.create(NewSandbox(template, ttl_seconds=BUILD_SECONDS), log_progress)
    await furnish(verbs, info)
    return info.id


@get(at("/templates/{template:str}/files/{number:str}"), **of(SandboxVerbs.token, status=201), **opened())
async def upload_link(
    template: Name, number: Number, request: _Asked, verbs: Given, wait: Wait
) -> dict[str, object]:
    build = _builds(request).waiting(template, caller_of(request.scope).name)
    if not _HASH.fullmatch(number):
        raise UserError("bad_request", "The hash of an archive is written in hexadecimal digits.")
    sandbox = await wait(_sandbox_of(verbs, build))
    build.archives.add(number)
    url = str(request.base_url).rstrip("/") + at(f"/templates/{template}/files/{number}")
    headers = {"X-Access-Token": (await verbs.sandboxes.token(sandbox)).token, "E2b-Sandbox-Id": sandbox}
    return {"present": False, "url": url, "headers": headers}


@put(
    at("/templates/{template:str}/files/{number:str}"),
    **of(FileVerbs.write, status=200),
    **opened(request_max_body_size=None),
)
async def upload(template: Name, number: Number, request: _Asked, verbs: Given) -> None:
    build = _builds(request).inside(template, caller_of(request.scope).sandbox)
    if number not in build.archives:
        raise UserError("no_such_build", "That archive was not announced.")
    file = verbs.files.write(build.sandbox, f"{ARCHIVES}/{number}")
    async with read_on_after_errors(request), file as sink:
        async for data in body_of(request):
            await sink.send(data)


@post(
    at("/v2/templates/{template:str}/builds/{number:str}"), **of(SandboxVerbs.start, status=202), **opened()
)
async def start_build(template: Name, number: Number, request: _Asked, verbs: Given, wait: Wait) -> None:
    build = _builds(request).of(template, number, caller_of(request.scope).name)
    wish = await unary(_Start, request)
    if wish.start_cmd:
        raise UserError("bad_request", "A snapshot has files only: start the program in the sandbox instead.")
    image = (wish.from_image or "").partition(":")[0]
    base = wish.from_template or ("base" if image in ("", *_OWN_IMAGES) else wish.from_image) or "base"
    line = script(wish.steps)
    async with build.asking:
        if build.status != "waiting":
            raise UserError("name_taken", "This build has been started already.")
        await wait(_in_place(verbs, build, base))
        command = NewCommand(("/bin/bash", "-c", line), cwd="/", user="root", seconds=BUILD_SECONDS)
        build.command = (await verbs.sandboxes.start(build.sandbox, command)).id
        build.status = "building"


async def _in_place(verbs: Verbs, build: _Build, base: str) -> None:
    """Let the build have a sandbox of its base, with its archives."""
    before = build.sandbox
    if before and base == "base":
        return
    build.sandbox = await _opened(verbs, base)
    for archive in build.archives if before else ():
        path = f"{ARCHIVES}/{archive}"
        async with verbs.files.read(before, path) as pieces, verbs.files.write(build.sandbox, path) as sink:
            async for piece in pieces:
                await sink.send(piece)
    if before:
        await verbs.sandboxes.destroy(before)


@get(at("/templates/{template:str}/builds/{number:str}/status"), **of(SnapshotVerbs.take), **opened())
async def build_status(
    template: Name, number: Number, request: _Asked, verbs: Given, wait: Wait
) -> dict[str, object]:
    build = await _looked(template, number, request, verbs, wait)
    told: dict[str, object] = {
        "templateID": build.template,
        "buildID": build.id,
        "status": build.status,
        "logs": [],
        "logEntries": _entries(build, request.query_params.get("logsOffset", "")),
    }
    return told | ({"reason": {"message": build.reason}} if build.reason else {})


@get(at("/templates/{template:str}/builds/{number:str}/logs"), **of(SnapshotVerbs.take), **opened())
async def build_logs(
    template: Name, number: Number, request: _Asked, verbs: Given, wait: Wait
) -> dict[str, object]:
    build = await _looked(template, number, request, verbs, wait)
    return {"logs": _entries(build, "")}


async def _looked(template: str, number: str, request: _Asked, verbs: Verbs, wait: Waiting) -> _Build:
    build = _builds(request).of(template, number, caller_of(request.scope).name)
    async with build.asking:
        if build.status == "building":
            await wait(_look(verbs, build))
    return build


def _entries(build: _Build, after: str) -> list[dict[str, str]]:
    first, now = int(after) if _NUMBER.fullmatch(after) else 0, stamp(time.time())
    lines = build.log[first : first + _LINES]
    return [{"timestamp": now, "level": "info", "message": line} for line in lines]


async def _look(verbs: Verbs, build: _Build) -> None:
    """Read the log of a build; if it has ended, keep its files under its name."""
    try:
        state, text = await _output(verbs, build)
    except UserError as error:
        build.status, build.reason = "error", error.message
        return
    build.log = text.splitlines()
    if state is None:
        return
    if state == 0:
        try:
            await _keep(verbs, build)
        except CloisterError as error:
            build.status, build.reason = "error", error.message
        else:
            build.status = "ready"
    else:
        last = next((line for line in reversed(build.log) if line.startswith("[")), "The build")
        build.status, build.reason = "error", f"{last} failed with exit status {state}."
    with suppress(UserError):  # it may have ended by itself
        await verbs.sandboxes.destroy(build.sandbox)


async def _keep(verbs: Verbs, build: _Build) -> None:
    """Keep the files under the build's name; the earlier ones go when the new ones are safe."""
    earlier = [kept for kept in await verbs.snapshots.list() if kept.name == build.template]
    spare = await verbs.snapshots.take(build.sandbox) if earlier else None
    for kept in earlier:
        await verbs.snapshots.remove(kept.id)
    await verbs.snapshots.take(build.sandbox, build.template)
    if spare is not None:
        await verbs.snapshots.remove(spare.id)


async def _output(verbs: Verbs, build: _Build) -> tuple[int | None, str]:
    """How the command ended, None while it runs, and all that it has printed."""
    found, after = bytearray(), 0
    while True:
        page = await verbs.sandboxes.output(build.sandbox, build.command, after)
        found += b"".join(piece.data for piece in page.output)
        if page.next_offset == after or not page.output or len(found) > LOG_BYTES:
            break
        after = page.next_offset
    command = page.command
    ended = (
        None if command.state == "running" else command.exit_code if command.exit_code is not None else 137
    )
    return ended, found.decode("utf-8", errors="replace")


@get(at("/templates/aliases/{template:str}"), **of(TemplateVerbs.list), **opened())
async def alias(template: Name, verbs: Given) -> Response[dict[str, object]]:
    names = {kept.name for kept in await verbs.snapshots.list()}
    names |= {info.name for info in await verbs.templates.list()}
    if template not in names:
        raise UserError("no_such_template", f"There is no template {template[:64]}.")
    return Response({"templateID": template, "public": False})


ROUTES = (new_build, upload_link, upload, start_build, build_status, build_logs, alias)
