"""The checks of `cloister doctor` and of the page of the machine. Each finding says what is there and which command fixes it."""

# ruff: noqa: PLC0415

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from cloister.app.settings import PROVIDER_KEYS, Settings
from cloister.core.errors import CloisterError, HostError, UserError
from cloister.core.text import one_line

if TYPE_CHECKING:
    from cloister.sandbox.api import TierReport
    from cloister.sandbox.pool import PoolInfo

_GIB = 1 << 30
_RUN_BYTES = _GIB
"""Free disk space a run should have once the template is built."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    name: str
    ok: bool
    found: str
    fix: str | None = None
    """The exact command, or the setting to change."""
    needed: bool = True
    """True if no run can start without it."""


class Checkup(msgspec.Struct, frozen=True):
    """All findings, and whether a run can start."""

    ready: bool
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, findings: tuple[Finding, ...]) -> Self:
        return cls(all(one.ok or not one.needed for one in findings), findings)


async def checkup(settings: Settings, server: Finding, pool: tuple[Finding, ...] = ()) -> tuple[Finding, ...]:
    """Run every check, in the order in which problems should be fixed. Missing tools are findings, not errors.

    `server` and `pool` are what the caller knows about the server and its warm sandboxes.
    """
    built = _template_built(settings)
    return (
        _system(),
        _root(),
        _program(settings, "git", "fetches repositories and makes branches", "git"),
        _program(settings, "cc", "compiles the small program inside each sandbox", "gcc libc6-dev"),
        _mmdebstrap(settings, built),
        *await _tiers(settings),
        _cgroups(),
        _data_dir(settings.data_dir),
        _log(settings.data_dir),
        *_audit(settings),
        _disk(settings.data_dir, built),
        _template(built),
        _image_tools(settings),
        server,
        *pool,
        *await credential_findings(settings),
        _model(settings),
    )


def _system() -> Finding:
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    ok = platform.system() == "Linux" and platform.machine() in ("x86_64", "AMD64")
    return Finding("system", ok, found, None if ok else "use a Linux machine with an x86-64 processor")


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("root", ok=True, found="running as root")
    return Finding(
        "root", ok=False, found="not root: sandboxes need root on this host", fix="sudo cloister doctor"
    )


def _program(settings: Settings, name: str, why: str, package: str, *, needed: bool = True) -> Finding:
    path = shutil.which(name, path=settings.path)
    if path is None:
        return Finding(name, False, f"not installed; it {why}", f"apt-get install {package}", needed)
    return Finding(name, True, path, needed=needed)


def _mmdebstrap(settings: Settings, built: bool | None) -> Finding:
    return _program(settings, "mmdebstrap", "builds the template", "mmdebstrap", needed=not built)


async def _tiers(settings: Settings) -> tuple[Finding, ...]:
    from cloister.app.wiring import make_data_dir
    from cloister.core.ids import new_owner_id
    from cloister.sandbox.liveness import Owners
    from cloister.sandbox.local.provider import Choices, local_provider
    from cloister.sandbox.providers import Providers, choose

    owner = new_owner_id()
    try:
        # The self-test opens a sandbox, and a sandbox needs a living owner.
        make_data_dir(settings.data_dir)
        with Owners(settings.data_dir / "owners").hold(owner):
            choices = Choices(settings.file.runtime, settings.file.runsc, settings.file.store)
            tiers = Providers((local_provider(settings.data_dir, owner, settings.path, choices),))
            reports = await tiers.reports(again=True)
            await tiers.close()
    except OSError as error:
        found = f"not tested: {settings.data_dir} cannot be used ({error.strerror})"
        return (Finding("tiers", False, found, "sudo cloister doctor"),)
    except CloisterError as error:
        return (Finding("tiers", False, f"the self-test could not run: {error.message}"),)
    try:
        auto = choose("auto", reports).tier
    except HostError:
        auto = None
    return tuple(
        Finding(
            report.tier,
            report.works,
            _about_tier(report, auto),
            report.fix,
            needed=auto is None,
        )
        for report in reports
    )


def _about_tier(report: "TierReport", auto: str | None) -> str:
    said = [report.found]
    if report.tier == auto:
        said.append("chosen by `auto`")
    if report.works and report.fix:
        said.append(f"for more speed: {report.fix}")
    return one_line("; ".join(said), 400)


def _cgroups() -> Finding:
    from cloister.sandbox.local.cgroup import read_layout

    try:
        layout = read_layout()
    except (CloisterError, OSError) as error:
        return Finding("cgroups", False, f"cannot be read: {error}", "mount the cgroup file system")
    if missing := layout.missing():
        why = f"no controller for {', '.join(missing)}: limits cannot be enforced"
        return Finding("cgroups", False, why, "mount these cgroup controllers")
    kind = "v1 controllers with a v2 tree" if layout.hybrid else "one tree with every controller"
    return Finding("cgroups", ok=True, found=kind)


def _data_dir(data_dir: Path) -> Finding:
    there = data_dir.exists()
    place = data_dir if there else _existing(data_dir)
    if os.access(place, os.W_OK | os.X_OK):
        return Finding("data", True, f"{data_dir}{'' if there else ' (the first run creates it)'}")
    return Finding("data", False, f"{data_dir} is not writable", "cloister --data-dir DIR …, or use sudo")


def _log(data_dir: Path) -> Finding:
    from cloister.core.errors import HostError
    from cloister.log.sqlite.reader import LogReader

    path = data_dir / "cloister.db"
    if not path.exists():
        return Finding("log", True, "the first run creates it")
    try:
        with LogReader(path) as reader:
            reader.rows(1)
    except HostError as error:
        return Finding("log", False, error.message, f"move {path} away, or restore a copy")
    return Finding("log", True, str(path))


def _audit(settings: Settings) -> Iterator[Finding]:
    """Whether the signed head of the audit is current, and whether it arrives at the configured places."""
    from cloister.log.audit.export import head_states
    from cloister.log.audit.head import HeadFile
    from cloister.log.sqlite.reader import AuditReader

    if not settings.log_path.exists():
        return
    try:
        head = HeadFile(settings.log_path).read()
        with AuditReader(settings.log_path) as reader:
            named = reader.page(head.number - 1, 1) if head else ()
    except HostError as error:
        yield Finding("audit", False, error.message, "cloister audit verify", needed=False)
        return
    good = head is not None and (head.number == 0 or [entry.hash for entry in named] == [head.hash])
    found = f"signed up to entry {head.number:,}" if head and good else "the signed head does not fit"
    yield Finding("audit", good, found, "cloister audit verify", needed=False)
    states = head_states(settings.data_dir)
    for place in settings.file.audit_heads:
        state, shown = states.get(place), one_line(place.partition("?")[0], 200)
        if state is None:
            yield Finding("heads", False, f"none was sent to {shown} yet", "cloister serve", needed=False)
        else:
            found = state.problem or f"sent to {shown} up to entry {state.number:,}"
            fix = f"make {shown} reachable; the server retries"
            yield Finding("heads", state.problem is None, found, fix, needed=False)


def _disk(data_dir: Path, built: bool | None) -> Finding:
    from cloister.sandbox.templates.building import NEEDED_BYTES

    wanted = _RUN_BYTES if built else NEEDED_BYTES
    from cloister.sandbox.store.api import shortage

    at = _existing(data_dir)
    free, short = shutil.disk_usage(at).free, shortage(at)
    if short is not None:
        return Finding("disk", False, f"{short.why} Runs are paused until then.", "free some space")
    found = f"{free / _GIB:.1f} GiB free, {wanted / _GIB:.0f} GiB wanted"
    return Finding("disk", free >= wanted, found, "free some space, or choose another --data-dir")


def _template_built(settings: Settings) -> bool | None:
    """None if it cannot be determined."""
    from cloister.sandbox.templates.catalog import Templates

    try:
        return Templates(settings.data_dir / "templates", settings.path).find("default") is not None
    except (CloisterError, OSError):
        return None


def _template(built: bool | None) -> Finding:
    if built:
        return Finding("template", ok=True, found="default is built")
    found = "default is not built yet: the first run builds it, once"
    return Finding("template", False, found, 'cloister run "…" --repo PATH', needed=False)


def _image_tools(settings: Settings) -> Finding:
    """The tool for templates from images."""
    if shutil.which("skopeo", path=settings.path) is not None:
        return Finding("images", True, "skopeo: templates from images work", needed=False)
    found = "no skopeo: needed for templates from images"
    return Finding("images", False, found, "apt-get install skopeo", needed=False)


def pool_finding(shelves: "Sequence[PoolInfo]") -> Finding:
    """About the warm sandboxes that the configuration asks for; none: no server answered."""
    if not shelves:
        why = "no warm sandboxes: only a running server keeps them"
        return Finding("pool", False, why, "cloister serve --background", needed=False)
    words = [
        f"{one_line(s.template, 48)}: {s.ready} of {s.size} ready, {s.memory_bytes / 2**20:.1f} MiB"
        for s in shelves
    ]
    return Finding("pool", all(shelf.ready for shelf in shelves), "; ".join(words), needed=False)


async def credential_findings(settings: Settings) -> tuple[Finding, ...]:
    """Check that the value of each credential can be read. No value is printed."""
    from cloister.egress.credentials import Unreadable, Vault, read_credentials

    try:
        found = read_credentials(settings.file.credential, str(settings.config_path))
    except UserError as error:
        return (Finding("credential", False, error.message, f"correct {settings.config_path}"),)
    vault = Vault(settings.variables)
    findings: list[Finding] = []
    for one in found:
        try:
            await vault.value(one)
            findings.append(Finding("credential", True, f"{one.name}, for {one.host}", needed=False))
        except Unreadable as error:
            found_text = f"{one.name} cannot be read: {error}"
            fix = f"store its value where its {one.source.kind} source points"
            findings.append(Finding("credential", False, found_text, fix, needed=False))
    return tuple(findings)


def _model(settings: Settings) -> Finding:
    """The model that a run would use. Prints the names of key variables, never their values."""
    from cloister.app.config import usual_model

    given = dict.fromkeys(
        PROVIDER_KEYS[provider] for provider in PROVIDER_KEYS if settings.keys.get(provider)
    )
    keys = f"keys: {', '.join(given)}" if given else "no key variable is set"
    try:
        chosen = usual_model(settings)
    except UserError as error:
        fix = f"export {next(iter(PROVIDER_KEYS.values()))}=…, or --model script:FILE"
        if error.code == "no_model":  # a run can start all the same
            found = f"none ({keys}): runs use the repair harness, which finds small faults by search"
            return Finding("model", False, found, fix, needed=False)
        return Finding("model", False, f"{one_line(error.message, 200)} ({keys})", fix)
    return Finding("model", True, f"{one_line(chosen, 120)} ({keys})", needed=False)


def _existing(path: Path) -> Path:
    """The nearest existing parent of `path`."""
    while not path.exists():
        path = path.parent
    return path
