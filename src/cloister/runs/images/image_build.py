"""Build images inside sandboxes: unpack their layers, run the steps of a Dockerfile, reuse the steps of earlier builds.

Nothing of an image or a Dockerfile runs on this machine. Steps have the limits and the proxy of any sandbox. After
each step the files are kept as a snapshot, named by everything that decides them.
"""

import hashlib
import posixpath
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import anyio
import msgspec

from cloister.core import limits
from cloister.core.computer import Command, Exited, Output, Process
from cloister.core.errors import HostError, UserError
from cloister.core.text import decode, one_line
from cloister.runs.images import dockerfile as syntax
from cloister.runs.images import image_context as context
from cloister.runs.images.dockerfile import Instruction, Mount, Parsed, Stage, State
from cloister.runs.images.image_context import Member, Shape, Tree
from cloister.runs.images.registries import check_registry, judged_network
from cloister.sandbox.api import SCRATCH, SNAPSHOT_PREFIX, Host, Sandbox, keep
from cloister.sandbox.container.oci import GUEST
from cloister.sandbox.local.spec import SEARCH_PATH
from cloister.sandbox.templates import oci, root
from cloister.sandbox.templates.building import BUILD_SECONDS, About, Build
from cloister.sandbox.templates.recipes import Dockerfile, Oci

STEP_SECONDS = 1_800.0
_PREFIX = "step-"
_VERSION = 1
"""Increased when the same step makes other files."""
_WORDS_BYTES = 4_000
_SPARE_BYTES = 1_048_576
_SOURCES_MOST = 1_000
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|git@|[A-Za-z0-9.-]+\.[a-z]+/.*\.git(?:#|$)")
_PLAIN_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")

_Act = Callable[[Sandbox], Awaitable[None]]

Opened = Callable[[str, bool], AbstractAsyncContextManager[Sandbox]]
"""Opens a sandbox from a template or snapshot, with the proxy or without any network."""


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """Bounds of one build."""

    image_bytes: int = 34_359_738_368
    """All layers of an image, or one archive, unpacked; the headers of the archive count."""
    entries: int = 1_000_000
    seconds: float = BUILD_SECONDS
    steps: int = 100
    """Cached steps that are kept, of all builds."""
    steps_seconds: float = limits.SNAPSHOT_SECONDS


class _How(TypedDict):
    tls: bool
    login: bool
    network: oci.Network | None


class Done(msgspec.Struct, frozen=True):
    """The files after a step, and the state that the next one finds."""

    template: str
    """What a sandbox with these files starts from."""
    key: str
    state: State
    digest: str | None = None
    """Of the base image."""


@dataclass(slots=True)
class ImageBuilder:
    """Unpacks images into sandboxes."""

    work: Build
    opened: Opened
    jail: oci.Jail
    bounds: BuildLimits
    trusted: bool
    """Whether the operator wrote the recipe: a repository names no path, uses no login, no registry of this machine."""

    async def image(self, recipe: Oci) -> About:
        """Build a template from an image."""
        name = await anyio.to_thread.run_sync(
            oci.source_of if self.trusted else oci.registry_name, recipe.image
        )
        async with self.network(name, tls=recipe.tls) as network:
            how: _How = {"tls": recipe.tls, "login": self.trusted, "network": network}
            source = await oci.resolve(self.work, name, **how)
            image = await oci.fetch(self.work, source, self.work.home / "image", **how)
        async with self.opened(SCRATCH, False) as sandbox:
            await self.unpack_image(sandbox, image)
            self.work.tell(0.85, "keeping the files")
            await keep(sandbox, self.work.rootfs)
        about = About(kind="oci", env={**image.env, **recipe.env}, digest=image.digest)
        return await settled(self.work, about, recipe.user or image.user, must=recipe.user is not None)

    @asynccontextmanager
    async def network(self, source: str, *, tls: bool) -> AsyncGenerator[oci.Network | None]:
        """The network for the download of an image; None for a file. Raises `UserError` (`no_image`)."""
        if not source.startswith("docker://"):
            yield None
            return
        chosen = self.trusted or not tls
        if not chosen:
            await check_registry(source)
        async with judged_network(self.work.note, named=source if chosen else "") as network:
            yield network

    async def unpack_image(self, sandbox: Sandbox, image: oci.Image) -> None:
        left, entries = self.bounds.image_bytes, self.bounds.entries
        for number, layer in enumerate(image.layers, 1):
            self.work.tell(None, f"unpacking layer {number} of {len(image.layers)}")
            async with self.jail.plain(layer) as pieces:
                used = await self.unpack(sandbox, pieces, "/", "w", left, entries)
            left, entries = left - used[0], entries - used[1]

    async def unpack(
        self,
        sandbox: Sandbox,
        pieces: AsyncIterator[bytes],
        top: str,
        flags: str,
        most_bytes: int | None = None,
        most_entries: int | None = None,
    ) -> tuple[int, int]:
        """Unpack a tar stream inside; return bytes and entries. Raises `HostError` (`template_failed`)."""
        most = self.bounds.image_bytes if most_bytes is None else most_bytes
        entries = self.bounds.entries if most_entries is None else most_entries
        argv = (GUEST, "--unpack", top, str(max(0, most)), str(max(0, entries)), flags)
        out, err, sent = bytearray(), bytearray(), 0
        command = Command(argv, cwd="/", user="root", seconds=self.bounds.seconds)

        async def feed(process: Process) -> None:
            nonlocal sent
            async for data in pieces:
                sent += len(data)
                if sent > most + _SPARE_BYTES:
                    raise self.failed("an archive is larger than the limit")
                await process.send(data)
            await process.send_eof()

        async def follow(process: Process) -> None:
            async for item in process:
                match item:
                    case Output(stream, data):
                        (out if stream == "out" else err).extend(data[:_WORDS_BYTES])
                    case Exited():
                        if not item.ok:
                            why = one_line(decode(bytes(err)), 300) or item.killed or f"status {item.code}"
                            raise self.failed(f"an archive cannot be unpacked ({why})")

        try:
            async with sandbox.start(command) as process, anyio.create_task_group() as tasks:
                tasks.start_soon(feed, process)
                await follow(process)
                # A program that ended reads no more of the archive.
                tasks.cancel_scope.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found = re.fullmatch(rb"\d{1,18} (\d{1,18})\n", bytes(out))
        return sent, int(found[1]) if found else entries

    def failed(self, why: str) -> HostError:
        name = self.work.name
        return HostError(
            "template_failed",
            f"The template {name} could not be built: {why} (`cloister template log {name}`)",
        )


_LACKS = {"git": "no run can start from it", "bash": "shell command lines will fail"}


async def settled(work: Build, about: About, user: str | None, *, must: bool) -> About:
    """Turn `work.rootfs` into a template, and remove everything else of the build."""
    work.tell(0.95, "adding the agent's user and directories")

    def finish() -> root.Settled:
        root.scrub(work.rootfs)
        return root.settle(work.rootfs, user, about.env.get("PATH", ""), must=must)

    try:
        found = await anyio.to_thread.run_sync(finish)
    except (OSError, RecursionError) as error:
        raise UserError(
            "bad_image", f"The image cannot become a template: {one_line(str(error))}."
        ) from error
    if not await anyio.to_thread.run_sync(root.has, work.rootfs, "sh", about.env.get("PATH", "")):
        raise UserError(
            "bad_image",
            "The image has no shell (`sh`), in which checks, set-up and the agent's commands run: start from an image "
            "that has one. `FROM scratch` alone has none.",
        )
    for name, there in (("git", found.git), ("bash", found.bash)):
        if not there:
            work.tell(None, f"the image has no {name}: {_LACKS[name]}")
    for left in [path for path in work.home.iterdir() if path != work.rootfs]:
        await work.remove(left)
    return msgspec.structs.replace(about, home=found.home, git=found.git, bash=found.bash)


@dataclass(frozen=True, slots=True)
class _Step:
    """An instruction, and the digest of all that decides the files after it."""

    each: Instruction
    number: int
    key: str
    act: _Act | None
    """None if it changes no files."""


@dataclass(slots=True)
class DockerfileBuilder(ImageBuilder):
    """Runs the stages of one Dockerfile."""

    recipe: Dockerfile
    host: Host
    _parsed: Parsed = field(default_factory=lambda: Parsed((), {}))
    _context: Tree = field(default_factory=lambda: Tree(Path("/nonexistent"), "the context"))
    _done: dict[int, Done] = field(default_factory=dict[int, Done])
    _trees: dict[str, Tree] = field(default_factory=dict[str, Tree])
    _cached: frozenset[str] = frozenset()
    _total: int = 0
    _count: int = 0

    async def build(self) -> About:
        """Build the template. Raises `UserError` (`no_dockerfile`, `bad_dockerfile`), `HostError` (`template_failed`)."""
        await anyio.to_thread.run_sync(self._read)
        stages = self._parsed.needed(self.recipe.target)
        self._total = sum(1 + len(stage.instructions) for stage in stages)
        known = await self.host.snapshots()
        self._cached = frozenset(info.name for info in known if info.name and info.name.startswith(_PREFIX))
        try:
            for stage in stages:
                self._done[stage.number] = await self._stage(stage)
        finally:
            with anyio.CancelScope(shield=True):
                await self._collect()
        last = self._done[stages[-1].number]
        self.work.tell(0.85, "keeping the files")
        async with self.opened(last.template, False) as sandbox:
            await keep(sandbox, self.work.rootfs)
        about = About(kind="dockerfile", env={**last.state.env, **self.recipe.env}, digest=last.digest)
        user = self.recipe.user or last.state.user
        return await settled(self.work, about, user, must=self.recipe.user is not None)

    def _read(self) -> None:
        top, name = Path(self.recipe.context), self.recipe.dockerfile
        # SAFETY: a link in the context must not make a file of this machine the Dockerfile.
        found = root.inside(top, name) if top.is_dir() else None
        if found is None or not found.is_file():
            raise UserError("no_dockerfile", f"There is no {name} in {top}: give its directory.")
        with found.open("rb") as file:
            text = file.read(syntax.TEXT_BYTES + 1).decode("utf-8", "replace")
        self._parsed = syntax.parse(text, self.recipe.args, _platform())
        ignore = context.ignore_text(top, name)
        self._context = Tree(top.resolve(), "the context", ignore, entries=self.bounds.entries)

    # Stages.

    async def _stage(self, stage: Stage) -> Done:
        self._count += 1
        self._say(stage.start, self._count)
        base = await self._base(stage)
        steps: list[_Step] = []
        state, key = base.state, base.key
        for each in stage.instructions:
            state = syntax.after(state, each, self._parsed.args, self.recipe.args)
            self._count += 1
            what, act = await self._step(stage, each, state)
            key = key if act is None else await anyio.to_thread.run_sync(_digest, key, each.name, what)
            steps.append(_Step(each, self._count, key, act))
        cached = [at for at, step in enumerate(steps, 1) if step.act and _name_of(step.key) in self._cached]
        first = max(cached, default=0)
        for step in steps[:first]:
            self._say(step.each, step.number, "cached: " if step.act else "")
        template = _template_of(steps[first - 1].key) if first else base.template
        return Done(await self._run(template, steps[first:]), key, state, base.digest)

    async def _run(self, template: str, steps: Sequence[_Step]) -> str:
        """Run steps in one sandbox; return what a sandbox with its files starts from."""
        last = next((step for step in reversed(steps) if step.act), None)
        if last is None:
            for step in steps:
                self._say(step.each, step.number)
            return template
        async with self.opened(template, self.recipe.network) as sandbox:
            free = "copy" not in (sandbox.info.isolation.store or "copy")
            for step in steps:
                self._say(step.each, step.number)
                if step.act is None:
                    continue
                await step.act(sandbox)
                if free or step is last or step.each.name == "RUN":
                    await self._remember(sandbox, step.key)
        return _template_of(last.key)

    async def _remember(self, sandbox: Sandbox, key: str) -> None:
        try:
            await sandbox.snapshot(_name_of(key))
        except UserError as error:
            if error.code != "name_taken":  # by another build of the same step
                raise
        self._cached |= {_name_of(key)}

    def _say(self, each: Instruction, number: int, prefix: str = "") -> None:
        self.work.note(f"STEP {number}/{self._total}: {prefix}{each.shown}")
        self.work.report(0.8 * number / max(1, self._total), prefix + one_line(each.shown, 60))

    async def _base(self, stage: Stage) -> Done:
        if stage.base.lower() == "scratch":
            return Done(SCRATCH, _digest(_VERSION, SCRATCH), State())
        other = self._parsed.stage(stage.base, stage.number)
        if other is None:
            return await self._image(stage.base)
        done = self._done[other.number]
        return msgspec.structs.replace(done, state=msgspec.structs.replace(done.state, args={}))

    async def _image(self, name: str) -> Done:
        """The files of an image in a registry."""
        async with self.network(oci.registry_name(name), tls=self.recipe.tls) as network:
            return await self._known(
                oci.registry_name(name), {"tls": self.recipe.tls, "login": self.trusted, "network": network}
            )

    async def _known(self, name: str, how: _How) -> Done:
        source = await oci.resolve(self.work, name, **how)
        # SAFETY: a login of the operator fetched some of these files, and a repository has none.
        key = _digest(_VERSION, source, self.trusted)
        about = self._images / f"{key}.json"
        image = None
        if _name_of(key) in self._cached:
            with suppress(OSError, msgspec.MsgspecError):
                image = msgspec.json.decode(about.read_bytes(), type=oci.Image, dec_hook=_to_path)
        if image is None:
            at = self.work.home / f"image-{key[:12]}"
            image = await oci.fetch(self.work, source, at, **how)
            async with self.opened(SCRATCH, False) as sandbox:
                await self.unpack_image(sandbox, image)
                await self._remember(sandbox, key)
            await self.work.remove(at)
            self._images.mkdir(mode=0o700, exist_ok=True)
            about.write_bytes(msgspec.json.encode(msgspec.structs.replace(image, layers=())))
        state = State(env=image.env, cwd=image.cwd, user=image.user or "")
        return Done(_template_of(key), key, state, image.digest)

    @property
    def _images(self) -> Path:
        return self.work.home.parent / ".images"

    async def _tree(self, done: Done) -> Tree:
        """The files of a stage or an image, copied to a directory that nothing else writes to."""
        if done.key not in self._trees:
            at = self.work.home / f"from-{done.key[:12]}"
            async with self.opened(done.template, False) as sandbox:
                await keep(sandbox, at)
            self._trees[done.key] = Tree(at, "that stage", owners=True, entries=self.bounds.entries)
        return self._trees[done.key]

    async def _collect(self) -> None:
        """Remove old cached steps, and those beyond the limit."""
        now = time.time()
        found = [info for info in await self.host.snapshots() if (info.name or "").startswith(_PREFIX)]
        kept = {info.name for info in found[-self.bounds.steps :]}
        for info in found:
            if info.name not in kept or now - info.created_at > self.bounds.steps_seconds:
                with suppress(UserError, HostError):
                    await self.host.delete_snapshot(info.id)
                kept.discard(info.name)
        for about in self._images.glob("*.json"):
            if _name_of(about.stem) not in kept:
                about.unlink(missing_ok=True)

    # Steps.

    async def _step(self, stage: Stage, each: Instruction, state: State) -> tuple[object, _Act | None]:
        """What decides the files after an instruction, and how to make them; None if it changes no files."""
        match each.name:
            case "RUN":
                return await self._run_step(stage, each, state)
            case "WORKDIR":
                return state.cwd, self._placing([context.directory_member(state.cwd)])
            case "COPY" | "ADD":
                return await self._copy_step(stage, each, state)
            case _:
                return None, None

    async def _run_step(self, stage: Stage, each: Instruction, state: State) -> tuple[object, _Act]:
        argv = syntax.exec_form(each.rest) or (*state.shell, _script(each))
        mounts: list[tuple[Mount, Done | None]] = []
        what: list[object] = [argv, state.values, state.cwd, state.user, self.recipe.network]
        for mount in each.mounts():
            origin = await self._origin(stage, mount.origin)
            mounts.append((mount, origin))
            taken: list[Member] = []
            if mount.kind == "bind" and origin is None:
                taken = await self._gather(each, self._context, [mount.source or "/"], "/")
            files = origin.key if origin else await anyio.to_thread.run_sync(context.digest, taken)
            what.append((mount, files))

        async def act(sandbox: Sandbox) -> None:
            undo = [await self._mount(sandbox, each, state, mount, origin) for mount, origin in mounts]
            await self._command(sandbox, each, argv, state)
            for members in undo:
                await self._place(sandbox, members, Shape(), "w")

        return what, act

    async def _origin(self, stage: Stage, reference: str) -> Done | None:
        if not reference:
            return None
        other = self._parsed.stage(reference, stage.number)
        return self._done[other.number] if other is not None else await self._image(reference)

    async def _mount(
        self, sandbox: Sandbox, each: Instruction, state: State, mount: Mount, origin: Done | None
    ) -> list[Member]:
        """Make a mount's files; return the whiteouts that remove them again."""
        target = _joined(state.cwd, mount.target)
        there = await look(sandbox, target)
        members = [context.directory_member(target)]
        if mount.kind == "bind":
            if there not in ("none", "empty"):
                raise each.bad(f"{one_line(target, 80)} exists in the image: use COPY instead of --mount.")
            tree = await self._tree(origin) if origin else self._context
            members = await self._gather(each, tree, [mount.source or "/"], target)
        if there == "none":
            parent, name = posixpath.split(target)
            undo = [context.text_member(f"{parent}/.wh.{name}", "")]
        else:
            undo = [context.text_member(f"{target}/.wh..wh..opq", "")] if there == "empty" else []
        await self._place(sandbox, members, Shape(), "k")
        return undo

    async def _command(
        self, sandbox: Sandbox, each: Instruction, argv: tuple[str, ...], state: State
    ) -> None:
        uid, gid, home = await identity(sandbox, state.user, each)
        env = {
            "PATH": SEARCH_PATH,
            "HOME": home,
            "USER": state.user.partition(":")[0] or "root",
            **state.values,
        }
        if (uid, gid) != (0, 0):
            argv = (GUEST, "--as", str(uid), str(gid), *argv)
        try:
            why = await self.work.run_inside(sandbox, Command(argv, state.cwd, env, "root", STEP_SECONDS))
        except UserError as error:
            raise self.failed(f"{one_line(each.shown, 80)} failed: {error.message}") from error
        if why:
            raise self.failed(f"{one_line(each.shown, 80)} failed {why}")

    async def _copy_step(self, stage: Stage, each: Instruction, state: State) -> tuple[object, _Act]:
        *sources, target = syntax.exec_form(each.rest) or syntax.split(each.rest, state.values, each)
        sources = list(dict.fromkeys(sources))
        if not 1 <= len(sources) <= _SOURCES_MOST:
            raise each.bad(f"name the destination, and at least one and at most {_SOURCES_MOST:,} sources.")
        remote = next((source for source in sources if _REMOTE.match(source)), None)
        if remote is not None:
            raise each.bad(
                f"{one_line(remote, 80)} is not copied: fetch it in a RUN step, where the rules for the network apply."
            )
        into = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
        path = _joined(state.cwd, target)
        texts = {f"<<{text.name}": _heredoc(text, state, each) for text in each.heredocs}
        written = [
            context.text_member(f"{path}/{source[2:]}" if into else path, texts[source])
            for source in sources
            if source in texts
        ]
        sources = [source for source in sources if source not in texts]
        shown = (target, each.flag("chown"), each.flag("chmod"), written)
        origin = await self._origin(stage, each.flag("from"))
        if origin is not None:

            async def copy(sandbox: Sandbox) -> None:
                members = await self._gather(each, await self._tree(origin), sources, path, into=into)
                await self._put(sandbox, each, [*members, *written], path)

            return (origin.key, sources, shown), copy
        archives = await self._archives(sources) if each.name == "ADD" else []
        unpacked = {name for name, _ in archives}
        plain = [source for source in sources if source not in unpacked]
        members = await self._gather(each, self._context, plain, path, into=into)
        content = await anyio.to_thread.run_sync(_content, members, archives)

        async def add(sandbox: Sandbox) -> None:
            # Found again, not kept: thousands of steps may each copy the whole context.
            members = await self._gather(each, self._context, plain, path, into=into)
            await self._put(sandbox, each, [*members, *written], path)
            for _, archive in archives:
                async with self.jail.plain(archive) as pieces:
                    await self.unpack(sandbox, pieces, path, "k")

        return (content, shown), add

    async def _gather(
        self, each: Instruction, tree: Tree, sources: Sequence[str], path: str, *, into: bool = False
    ) -> list[Member]:
        """The files that a COPY takes. Raises `HostError` (`template_failed`)."""

        def find() -> list[Member]:
            names = [(source, tree.find(source)) for source in sources]
            below = into or sum(len(found) for _, found in names) > 1
            made: list[Member] = []
            for source, found in names:
                before = len(made)
                for name in found:
                    folder = (tree.top / name).is_dir()
                    target = posixpath.join(path, posixpath.basename(name)) if below and not folder else path
                    made.extend(tree.members(name, target))
                if len(made) == before:
                    shown = one_line(source, 80)
                    raise self.failed(
                        f"{each.name}: there is no {shown} in {tree.what}, or a link leads out of it"
                    )
            return made

        try:
            members = await anyio.to_thread.run_sync(find)
        except OSError as error:
            raise self.failed(f"{each.name}: {one_line(str(error), 200)}") from error
        if sum(member.size for member in members) > self.bounds.image_bytes:
            raise self.failed(f"{each.name}: the files have more than {self.bounds.image_bytes:,} bytes")
        return members

    async def _archives(self, sources: Sequence[str]) -> list[tuple[str, Path]]:
        """The sources of an ADD that are archives, which are unpacked."""
        found: list[tuple[str, Path]] = []
        for source in sources:
            names = await anyio.to_thread.run_sync(self._context.find, source)
            path = self._context.top / names[0] if len(names) == 1 else None
            if path is not None and path.is_file() and await self._is_archive(path):
                found.append((source, path))
        return found

    async def _is_archive(self, path: Path) -> bool:
        first = b""
        with suppress(UserError):
            async with self.jail.plain(path) as pieces:
                async for data in pieces:
                    first += data[:512]
                    if len(first) >= 512:
                        break
        return first[257:262] == b"ustar"

    def _placing(self, members: list[Member]) -> _Act:
        async def act(sandbox: Sandbox) -> None:
            await self._place(sandbox, members, Shape(), "k")

        return act

    async def _put(self, sandbox: Sandbox, each: Instruction, members: list[Member], path: str) -> None:
        """Copy members; a single file goes into `path` if that is a directory."""
        owner = None
        if chown := each.flag("chown"):
            uid, gid, _ = await identity(sandbox, chown, each)
            owner = (uid, gid)
        mode = each.flag("chmod")
        if [member.target for member in members] == [path] and members[0].path:
            name = posixpath.basename(decode(members[0].path))
            if members[0].kind != 0o040000 and await look(sandbox, path) in ("directory", "empty"):
                members = [msgspec.structs.replace(members[0], target=posixpath.join(path, name))]
        await self._place(sandbox, members, Shape(owner, int(mode, 8) if mode else None), "k")

    async def _place(self, sandbox: Sandbox, members: list[Member], shape: Shape, flags: str) -> None:
        if members:
            await self.unpack(sandbox, _threaded(context.pack(members, shape)), "/", flags)


async def look(sandbox: Sandbox, path: str) -> str:
    """What is at a path: `none`, `file`, `directory`, or `empty` for an empty directory."""
    done = await sandbox.run(Command((GUEST, "--look", path), cwd="/", user="root"))
    return decode(done.out).strip()


async def identity(sandbox: Sandbox, user: str, each: Instruction) -> tuple[int, int, str]:
    """User id, group id and home directory of `USER` or `--chown`. Raises `UserError` (`bad_dockerfile`)."""
    name, _, group = user.partition(":")
    passwd = await _lines(sandbox, "/etc/passwd") if name not in ("", "0") or group else ""
    known = root.users(passwd)
    found = next((one for one in known if name in (one.name, str(one.uid))), None)
    if found is None and name and root.number(name) is None and name != "root":
        raise each.bad(f"the image has no user {one_line(name, 60)}.")
    uid = found.uid if found else root.number(name) or 0
    gid = found.gid if found else uid if ":" in user and not group else 0
    if group:
        listed = (line.split(":") for line in (await _lines(sandbox, "/etc/group")).splitlines())
        numbers = [group, *(fields[2] for fields in listed if len(fields) > 2 and fields[0] == group)]
        ids = [gid for gid in map(root.number, reversed(numbers)) if gid is not None]
        if not ids:
            raise each.bad(f"the image has no group {one_line(group, 60)}.")
        gid = ids[0]
    if max(uid, gid) > 65_534:
        raise each.bad("ids are below 65,535 in a sandbox.")
    return uid, gid, (found.home if found else "/root" if uid == 0 else "/") or "/"


async def _lines(sandbox: Sandbox, path: str) -> str:
    try:
        return decode(await sandbox.read(path))
    except UserError:
        return ""


def _script(each: Instruction) -> str:
    """The text for the shell: a single heredoc is the script itself, others belong to the line before them."""
    texts = each.heredocs
    if len(texts) == 1 and each.rest.lstrip("<-").strip("\"'") == texts[0].name:
        if texts[0].text.startswith("#!"):
            raise each.bad(
                "a script with #! is not supported: name its interpreter, as in RUN python3 <<EOF."
            )
        return texts[0].text
    return "\n".join([each.rest, *(f"{text.text}{text.name}" for text in texts)])


def _heredoc(text: syntax.Heredoc, state: State, each: Instruction) -> str:
    if not text.expands:
        return text.text
    left = syntax.TEXT_BYTES

    def value(found: re.Match[str]) -> str:
        nonlocal left
        made = state.values.get(found[1] or found[2], "")
        left -= len(made)
        if left < 0:
            raise each.bad(f"the variables of a text expand to more than {syntax.TEXT_BYTES:,} characters.")
        return made

    return _PLAIN_VARIABLE.sub(value, text.text)


def _joined(cwd: str, path: str) -> str:
    return posixpath.normpath(posixpath.join("/", cwd, path)).replace("//", "/")


def _content(members: list[Member], archives: list[tuple[str, Path]]) -> list[str]:
    found = [context.digest(members)]
    for _, path in archives:
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return found


async def _threaded(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (data := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
        yield data


def _platform() -> Mapping[str, str]:
    made = {"PLATFORM": "linux/amd64", "OS": "linux", "ARCH": "amd64", "VARIANT": ""}
    return {f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in made.items()}


def _digest(*parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _name_of(key: str) -> str:
    return f"{_PREFIX}{key[:40]}"


def _template_of(key: str) -> str:
    return f"{SNAPSHOT_PREFIX}{_name_of(key)}"


def _to_path(kind: type, value: object) -> object:
    return Path(str(value)) if kind is Path else value
