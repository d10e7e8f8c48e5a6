"""Released sources, brought here by package name through the clients this machine is set up with.

Nothing of a package is run: source distributions are read from the index that pip would ask, `npm pack` and
`apt-get source --download-only` only bring archives. Each is believed by its SHA-256 alone and kept between sessions.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

import pytest

from cloister.core.errors import HostError
from cloister.sandbox.templates.debian import host_release, read_sources

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloister-tests" / "real"
_BYTES = 16_777_216
_SECONDS = 120
_DEFAULT_INDEX = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


class CannotFetch(Exception):
    """The archive cannot be had on this machine now."""


def archive(kind: str, package: str, version: str, file: str, sha256: str) -> Path:
    """The file of that name and content; skips, and says which, where it cannot be brought here."""
    kept = CACHE / "archives" / file
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            try:
                _FETCH[kind](package, version, file, Path(name))
                if not (Path(name) / file).is_file():
                    raise CannotFetch(f"it has no {file}")
            except (CannotFetch, HostError, HTTPException, OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"{package} {version} cannot be fetched here: {error}")
            for found in Path(name).iterdir():  # Debian's come in several files at a time
                found.replace(kept.with_name(found.name))
    digest = hashlib.sha256(kept.read_bytes()).hexdigest()
    if digest != sha256:
        kept.unlink()
        raise AssertionError(f"{file} is not the one that was released: its SHA-256 is {digest}")
    return kept


def unpack(path: Path, to: Path, *, below: bool = True) -> None:
    """Unpack an archive; `below` leaves out the one directory around everything."""
    with tempfile.TemporaryDirectory(dir=to.parent) as name:
        with tarfile.open(path) as tar:
            tar.extractall(name, filter="data")
        inside = list(Path(name).iterdir())
        assert not below or len(inside) == 1, f"{path.name} has no directory around everything"
        shutil.copytree(inside[0] if below else name, to, dirs_exist_ok=True)


def _output(argv: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise CannotFetch((done.stderr.strip() or done.stdout.strip() or f"{argv[0]} failed")[-300:])
    return done.stdout.strip()


def _index() -> str:
    """Where pip would look."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    pythons = [one for one in (sys.executable, shutil.which("python3")) if one]
    for args in (("-m", "pip", "config", "get", "global.index-url"), ("-c", _DEFAULT_INDEX)):
        for python in pythons:
            try:
                return _output([python, *args])
            except CannotFetch:
                continue
    raise CannotFetch("pip is not installed")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a" and (link := dict(attrs).get("href")):
            self.found.append(link)


def _from_pypi(package: str, version: str, file: str, to: Path) -> None:
    page = f"{_index().rstrip('/')}/{package}/"
    with urlopen(page, timeout=30) as reply:
        links = _Links()
        links.feed(reply.read(_BYTES).decode())
        page = reply.url
    link = next((one for one in links.found if urlsplit(one).path.endswith(f"/{file}")), None)
    if link is None:
        raise CannotFetch(f"the index has no {file}")
    with urlopen(urljoin(page, link), timeout=60) as reply:
        (to / file).write_bytes(reply.read(_BYTES))


def _from_npm(package: str, version: str, file: str, to: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CannotFetch("npm is not installed")
    _output([npm, "pack", "--silent", "--ignore-scripts", f"{package}@{version}"], to)


def npm_packages(names: Sequence[str]) -> Path:
    """An archive of `node_modules` with these packages and what they need; skips where npm cannot bring them."""
    kept = CACHE / "archives" / f"npm-{'-'.join(names).replace('/', '-')}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            npm = shutil.which("npm")
            try:
                if npm is None:
                    raise CannotFetch("npm is not installed")
                _output(
                    [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", name, *names]
                )
            except (CannotFetch, OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"{', '.join(names)} cannot be fetched here: {error}")
            with tarfile.open(f"{name}/all.tar", "w") as tar:
                tar.add(f"{name}/node_modules", "node_modules")
            Path(f"{name}/all.tar").replace(kept)
    return kept


def _from_debian(package: str, version: str, file: str, to: Path) -> None:
    apt = shutil.which("apt-get")
    if apt is None:
        raise CannotFetch("apt-get is not installed")
    home = CACHE / "apt"
    listed = home / "sources.list"
    for name in ("lists/partial", "archives/partial"):
        (home / name).mkdir(parents=True, exist_ok=True)
    sources = (source.line() for source in read_sources(host_release()))
    listed.write_text("".join(f"deb-src{line.removeprefix('deb')}\n" for line in sources))
    own = [apt, "-qq"]
    for option in (
        f"Dir::Etc::sourcelist={listed}",
        "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={home}/lists",
        f"Dir::Cache={home}",
        "APT::Sandbox::User=",
    ):
        own += ["-o", option]
    _output([*own, "update"])
    _output([*own, "source", "--download-only", f"{package}={version}"], to)


_FETCH = {"pypi": _from_pypi, "npm": _from_npm, "debian": _from_debian}
