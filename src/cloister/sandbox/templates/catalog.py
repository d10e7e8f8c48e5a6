"""The templates of one data directory: list, build, use and remove them.

`NAME.toml` is a recipe, `NAME.log` the log of its last build. `NAME-DIGEST`, or `NAME-DIGEST.N` after a rebuild, is a
complete template with `rootfs` and a marker. The newest build counts. Each user of a build holds a lock on its marker;
older builds without users are removed.
"""

import os
import re
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio
import msgspec

from cloister.core.errors import HostError, UserError
from cloister.core.system import locks
from cloister.core.text import decode, one_line
from cloister.sandbox._spawn import remove_tree
from cloister.sandbox.api import SCRATCH, Report
from cloister.sandbox.templates import building, debian, root
from cloister.sandbox.templates.building import MARKER, About, Build, Built, complete, load
from cloister.sandbox.templates.recipes import (
    BUILT_IN,
    Packages,
    Recipe,
    check,
    check_name,
    directory_of,
    read_recipe,
    with_stand_ins,
    write_recipe,
)

_DIRECTORY = re.compile(r"(?P<stem>.+-[0-9a-f]{12})(?:\.(?P<serial>[0-9]{1,9}))?")
_LOG_SHOWN_BYTES = 4_194_304

Builder = Callable[[Build], Awaitable[About]]
"""Makes `rootfs` in the build's directory."""


class TemplateInfo(msgspec.Struct, frozen=True):
    """The public record of a template."""

    name: str
    recipe: Recipe
    ready: bool
    about: About | None = None
    """About the newest build; None before the first."""
    failed: bool = False
    """True if it is not ready because its last build failed; see its log."""


_DISK = building.DiskReserve()


class Templates:
    """The templates below one directory, which several processes may share."""

    def __init__(self, directory: Path, path: str, disk: building.DiskReserve = _DISK) -> None:
        self.directory = directory
        self._disk = disk
        self._path = path
        self._used: dict[Path, tuple[int, int]] = {}

    def knows(self, name: str) -> bool:
        """Whether there is a template of this name, built or not."""
        return self._recipe(name) is not None

    def recipe(self, name: str) -> Recipe:
        """Raises `UserError` (`unknown_template`, `bad_template`)."""
        if recipe := self._recipe(name):
            return recipe
        known = ", ".join(self.names())
        raise UserError(
            "unknown_template", f"There is no template {one_line(name, 60)!r}; there is: {known}."
        )

    def _recipe(self, name: str) -> Recipe | None:
        try:
            check_name(name)
        except UserError:
            return None
        return read_recipe(self.directory / f"{name}.toml") or BUILT_IN.get(name)

    def names(self) -> tuple[str, ...]:
        """Every template that has a recipe, sorted."""
        files = {path.stem for path in self.directory.glob("*.toml") if not path.name.startswith(".")}
        return tuple(sorted(files | set(BUILT_IN)))

    def all(self) -> tuple[TemplateInfo, ...]:
        """Every template with a valid recipe."""
        found: list[TemplateInfo] = []
        for name in self.names():
            with suppress(UserError):
                found.append(self.info(name))
        return tuple(found)

    def info(self, name: str) -> TemplateInfo:
        """Raises `UserError` (`unknown_template`, `bad_template`)."""
        recipe = self.recipe(name)
        built = self.current(name)
        failed = built is None and self._has_failed(name)
        return TemplateInfo(name, recipe, built is not None, built.about if built else None, failed)

    def _has_failed(self, name: str) -> bool:
        with suppress(FileNotFoundError, UserError):
            return f"\n{self.log(name)}".rpartition("\n== ")[2].startswith("failed: ")
        return False

    def built(self, name: str) -> Built | None:
        """The build that a sandbox of `name` starts from: of its recipe, or of an older one until that is built.

        Raises as `recipe`.
        """
        if name == SCRATCH:
            return self._scratch()
        older = [home for home in self._all_builds() if _name_of(home) == name]
        newest = sorted(older, key=lambda home: home.stat().st_mtime, reverse=True)
        return self.current(name) or next((found for home in newest if (found := load(name, home))), None)

    def current(self, name: str) -> Built | None:
        """The newest complete build of the recipe as it is now. Raises as `recipe`."""
        builds = self._builds(self._stem(name))
        return next((found for home in builds if (found := load(name, home))), None)

    def _scratch(self) -> Built:
        home = self.directory / SCRATCH
        if (found := load(SCRATCH, home)) is None:
            root.furnish(home / "rootfs")
            complete(home, About(kind=SCRATCH, git=False, bash=False))
            found = Built(SCRATCH, home, About())
        return found

    def find(self, name: str) -> Path | None:
        """The root filesystem of the newest complete build. Raises as `recipe`."""
        built = self.built(name)
        return None if built is None else built.rootfs

    def version(self, name: str) -> str | None:
        """The version that a sandbox of `name` would start from, or None when there is none."""
        try:
            built = self.built(name)
        except UserError:
            return None
        return None if built is None else built.version

    def keep_recipe(self, name: str, recipe: Recipe, *, replace_built_in: bool = False) -> None:
        """Store a recipe. Raises `UserError` (`bad_template`, `built_in_template`)."""
        check_name(name)
        check(recipe)
        if name in BUILT_IN and recipe != self._recipe(name) and not replace_built_in:
            raise UserError(
                "built_in_template",
                f"{name} is built in, and every run without a template starts from it: choose another name, or say "
                "that you replace it (`--replace-built-in`, or `replace_built_in` in the request).",
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._recipe(name) != recipe:
            write_recipe(self.directory / f"{name}.toml", recipe)

    def log(self, name: str) -> str:
        """The end of the last build's log. Raises `UserError` (`unknown_template`, `no_such_log`)."""
        self.recipe(name)
        try:
            with self._log_path(name).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _LOG_SHOWN_BYTES))
                return decode(file.read())
        except FileNotFoundError:
            raise UserError("no_such_log", f"The template {name} was never built here.") from None

    async def prepare(self, name: str, report: Report, *, again: bool = False) -> None:
        """Build `name` if it is missing, or `again`; waits for another process that is building it.

        Raises as `recipe`, and `HostError` (`no_root`, `no_disk`, `no_sources`, `template_failed`, or `no_TOOL` for
        a missing tool).
        """
        recipe = self.recipe(name)

        async def base(work: Build) -> About:
            match recipe:
                case Packages():
                    return await debian.build(work, with_stand_ins(recipe))
                case _:
                    raise HostError(
                        "no_template",
                        f"The template {name} is built in a sandbox: run `cloister template build {name}`.",
                    )

        await self.build(name, base, report, again=again)

    async def build(self, name: str, make: Builder, report: Report, *, again: bool = False) -> Built:
        """Build `name` with `make`, unless it is ready and not wanted `again`. Raises as `make`.

        A build that another process completes meanwhile is used instead.
        """
        before = self.current(name)
        if before is not None and not again:
            return before
        stem = self._stem(name)
        building.check_host(self.directory, self._disk.needed_bytes)
        async with building.locked(self.directory / f".lock-{stem}", report):
            now = self.current(name)
            if now is not None and now != before:
                return now
            await building.remove_leftovers(self.directory, stem, self._path)
            built = await self._build(name, stem, make, report)
            await self.collect(name)
        report(1.0, "the template is ready")
        return built

    async def _build(self, name: str, stem: str, make: Builder, report: Report) -> Built:
        home = self.directory / building.building_name(stem)
        # Other users of this machine must not read the files of an untrusted image.
        home.mkdir(mode=0o700)
        log = self._log_path(name)
        log.unlink(missing_ok=True)
        log.touch(mode=0o600)
        work = Build(name, home, self._path, report, log, self._disk.reserve_bytes)
        started = time.time()
        try:
            about = await make(work)
            took = time.time() - started
            complete(home, msgspec.structs.replace(about, built_at=time.time(), seconds=took))
            await building.sync(home, self._path)
            final = self.directory / self._free_name(stem)
            home.rename(final)
        except BaseException as error:
            work.note(f"== failed: {error or type(error).__name__}")
            # The next builder removes the rest.
            with anyio.CancelScope(shield=True), suppress(HostError):
                await building.remove_leftovers(self.directory, stem, self._path)
            raise
        work.note("== ready")
        built = load(name, final)
        if built is None:
            raise HostError(
                "template_failed", f"The template {name} was removed while it was built: try again."
            )
        return built

    async def remove(self, name: str) -> int:
        """Remove the recipe and every build of it; return how many builds.

        Raises `UserError` (`unknown_template`, `template_in_use`).
        """
        with self._idle(self._stem(name)) as idle:
            if not idle:
                raise UserError("template_in_use", f"The template {name} is being built: wait for it.")
            return await self._remove_all(name)

    async def _remove_all(self, name: str) -> int:
        homes = [home for home in self._all_builds() if _name_of(home) == name]
        busy = [home for home in homes if not await self._remove_unused(home)]
        if busy:
            raise UserError("template_in_use", f"A sandbox uses the template {name}: end it first.")
        for path in (self.directory / f"{name}.toml", self._log_path(name)):
            path.unlink(missing_ok=True)
        return len(homes)

    async def collect(self, name: str) -> None:
        """Remove the unused builds of `name` except the newest."""
        newest = self._builds(self._stem(name))[:1]
        for home in self._all_builds():
            # Other versions of this program may define the built-in templates differently.
            same = _stem_of(home) == self._stem(name) if name in BUILT_IN else _name_of(home) == name
            if newest and same and home not in newest:
                await self._remove_unused(home)

    async def sweep(self) -> None:
        """Remove the leftovers of dead builders, and old unused builds."""
        for left in self.directory.glob(".building-*"):
            with self._idle(left.name.removeprefix(".building-").rpartition("-")[0]) as idle:
                if idle:
                    await remove_tree(left, self._path)
        for info in self.all():
            await self.collect(info.name)

    @contextmanager
    def using(self, built: Built) -> Generator[None]:
        """Keep the template from removal. Raises `HostError` (`no_template`) when it has been removed already."""
        descriptor, count = self._used.get(built.home, (-1, 0))
        if count == 0:
            descriptor = _hold(built)
        self._used[built.home] = (descriptor, count + 1)
        try:
            yield
        finally:
            descriptor, count = self._used[built.home]
            if count > 1:
                self._used[built.home] = (descriptor, count - 1)
            else:
                del self._used[built.home]
                os.close(descriptor)

    @contextmanager
    def _idle(self, stem: str) -> Generator[bool]:
        """Yield whether no process builds it; if so, none starts to during the block."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            idle = True
            try:
                held.enter_context(locks.lock(self.directory / f".lock-{stem}", create=True))
            except BlockingIOError:
                idle = False
            yield idle

    async def _remove_unused(self, home: Path) -> bool:
        """Remove an unused build; return whether it is gone. One rename hides it before its files are removed."""
        if home in self._used:
            return False
        gone = self.directory / building.building_name(_stem_of(home))
        try:
            with locks.lock(home / MARKER):
                os.rename(home, gone)  # noqa: PTH104  one system call, not worth a thread
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        await remove_tree(gone, self._path)
        return True

    def _stem(self, name: str) -> str:
        recipe = self.recipe(name)
        release = None
        if isinstance(recipe, Packages):
            with suppress(HostError):  # building it raises the error
                release = debian.host_release()
        return directory_of(name, recipe, release)

    def _builds(self, stem: str) -> list[Path]:
        """Newest first."""
        return [home for home in self._all_builds() if _stem_of(home) == stem]

    def _all_builds(self) -> list[Path]:
        found = [p for p in self.directory.glob("*-*") if not p.name.startswith(".") and _match(p)]
        return sorted(found, key=_serial_of, reverse=True)

    def _free_name(self, stem: str) -> str:
        newest = max((_serial_of(home) for home in self._builds(stem)), default=-1)
        return stem if newest < 0 else f"{stem}.{newest + 1}"

    def _log_path(self, name: str) -> Path:
        return self.directory / f"{name}.log"


def _match(home: Path) -> "re.Match[str] | None":
    return _DIRECTORY.fullmatch(home.name)


def _stem_of(home: Path) -> str:
    found = _match(home)
    return found["stem"] if found else ""


def _name_of(home: Path) -> str:
    return _stem_of(home).rpartition("-")[0]


def _serial_of(home: Path) -> int:
    found = _match(home)
    return int(found["serial"] or 0) if found else 0


def _hold(built: Built) -> int:
    with suppress(FileNotFoundError, BlockingIOError):
        descriptor = locks.take(built.home / MARKER, shared=True)
        if (built.home / MARKER).is_file():
            return descriptor
        os.close(descriptor)
    raise HostError("no_template", f"The template {built.name} was just removed: try again.")
