"""Rust: Debian's newest compiler, and the crates."""

import re
from collections.abc import Iterator

from cloister.environment.api import AptPackage, Line, Manager, Registry, Step, Toolchain, Used
from cloister.environment.hints import Hints, Named
from cloister.environment.listing import Project, Table, string, table
from cloister.environment.versions import parse

VERSION = "1.96"
"""Debian 12 has 1.63, and a current one for its web browsers."""
_PACKAGES = ("rustc-web", "cargo-web", "rustfmt-web", "rust-web-clippy")
_LIBRARIES = {
    "openssl-sys": ("libssl-dev", "pkg-config"),
    "libsqlite3-sys": ("libsqlite3-dev", "pkg-config"),
    "libz-sys": ("zlib1g-dev", "pkg-config"),
    "libgit2-sys": ("libgit2-dev", "pkg-config"),
    "pq-sys": ("libpq-dev",),
    "clang-sys": ("libclang-dev",),
    "prost-build": ("protobuf-compiler",),
    "alsa-sys": ("libasound2-dev", "pkg-config"),
    "libudev-sys": ("libudev-dev", "pkg-config"),
    "libdbus-sys": ("libdbus-1-dev", "pkg-config"),
    "freetype-sys": ("libfreetype-dev", "pkg-config"),
}
"""Crates that link libraries of the system."""


def plan(project: Project, hints: Hints) -> Iterator[Line]:
    """What a directory with `Cargo.toml` needs."""
    if not project.has("Cargo.toml"):
        return
    manifest = project.path("Cargo.toml")
    yield Used(manifest)
    # Members of a workspace add their dependencies to the same lock file.
    yield from (Used(project.path(name)) for name in project.below() if name.endswith("/Cargo.toml"))
    named = _named(project) or hints.version("rust")
    why = f"{named.text} in {named.file}" if named.text else manifest
    yield Toolchain("rust", VERSION, "debian", why, named.text, _problem(named.text))
    yield from (AptPackage(name, f"Rust {VERSION}: {why}") for name in _PACKAGES)
    lock = project.first("Cargo.lock")
    if lock is not None:
        yield Used(lock)
    names = set(re.findall(r'(?m)^name = "([\w-]{1,80})"', project.head("Cargo.lock")))
    for crate in sorted(names & _LIBRARIES.keys()):
        yield from (AptPackage(name, f"the crate {crate} links it") for name in _LIBRARIES[crate])
    yield Manager("cargo", "", "debian", lock or manifest)
    if not _needs_registry(project, lock):
        return
    yield Registry("@crates", lock or manifest)
    yield Step(f"cargo fetch{' --locked' if lock else ''}", lock or manifest, project.at)


def _needs_registry(project: Project, lock: str | None) -> bool:
    """False if every dependency is a directory of the repository."""
    if lock is not None:
        return "\nsource = " in project.head("Cargo.lock") or not project.head("Cargo.lock")
    names = [name for name in project.below() if name == "Cargo.toml" or name.endswith("/Cargo.toml")]
    return any(_foreign(project.toml(name)) for name in names)


def _foreign(manifest: Table) -> bool:
    tables = [manifest, table(manifest, "workspace"), *table(manifest, "target").values()]
    kinds = ("dependencies", "dev-dependencies", "build-dependencies")
    named = [one for part in tables for kind in kinds for one in table(part, kind).values()]
    return any(not table(one).get("path") and not table(one).get("workspace") for one in named)


def _named(project: Project) -> Named | None:
    for name in ("rust-toolchain.toml", "rust-toolchain"):
        text = project.text(name)
        if text.strip():
            channel = (
                string(table(project.toml(name), "toolchain").get("channel")) if "[" in text else text.strip()
            )
            return Named(channel[:40], project.path(name))
    manifest = project.toml("Cargo.toml")
    for path in (("package",), ("workspace", "package")):
        if text := string(table(manifest, *path).get("rust-version")):
            return Named(text, f"rust-version of {project.path('Cargo.toml')}")
    return None


def _problem(wanted: str) -> str | None:
    if wanted.startswith(("nightly", "beta")):
        return f"Rust {wanted} cannot be had (Debian 12 has {VERSION}, no registry has others): {VERSION} is used"
    if parse(wanted)[:2] > parse(VERSION):
        return f"Rust {wanted} cannot be had (Debian 12 has {VERSION}, no registry has others): {VERSION} is used"
    return None
