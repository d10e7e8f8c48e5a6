"""What `Cargo.toml` and `go.mod` say about tests: which of them run, and against what."""

import re
import tomllib
from collections.abc import Iterator
from typing import cast

from cloister.core.diagnosis import Weakening
from cloister.feedback.versions import Version

_Table = dict[str, object]
_REPLACES = re.compile(r"^(?:replace\s+)?\S{1,300}(?: v\S{1,80})? => \.{0,2}/\S{1,300}", re.MULTILINE)


def cargo_manifest(version: Version) -> Iterator[Weakening]:
    """Programs of tests that no longer run or are made from something else, members and dependencies that are swapped."""
    old, new = _read(version.before), _read(version.after)
    if old is None or new is None:
        return  # the check says so
    for detail in (*_package(old, new), *_targets(old, new), *_members(old, new)):
        yield Weakening(version.path, "configuration", detail=detail)
        return
    for name in ("patch", "replace"):
        if old.get(name) != new.get(name):
            yield Weakening(version.path, "deceived", detail=f"[{name}] was changed")
            return


def go_module(version: Version) -> Iterator[Weakening]:
    """Modules that are taken from the working tree now, perhaps the one that compares for the tests."""
    known = set(_REPLACES.findall(version.before or ""))
    for found in _REPLACES.findall(version.after or ""):
        if found not in known:
            yield Weakening(version.path, "deceived", detail=found)
            return


def _read(text: str | None) -> _Table | None:
    try:
        return tomllib.loads(text or "")
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _table(value: object) -> _Table:
    return cast("_Table", value) if isinstance(value, dict) else {}


def _rows(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _package(old: _Table, new: _Table) -> Iterator[str]:
    was, now = _table(old.get("package")), _table(new.get("package"))
    for name in ("autotests", "autolib"):
        if now.get(name) is False and was.get(name) is not False:
            yield f"{name} = false"


def _targets(old: _Table, new: _Table) -> Iterator[str]:
    was, now = _table(old.get("lib")), _table(new.get("lib"))
    if was.get("path", "src/lib.rs") != now.get("path", "src/lib.rs"):
        yield "the library is made from another file"
    if any(now.get(name) is False and was.get(name) is not False for name in ("test", "doctest", "harness")):
        yield "the library's tests do not run"
    before, after = _tests(old), _tests(new)
    for name, one in after.items():
        usual = (f"tests/{name}.rs", f"tests/{name}/main.rs", None)
        known = before.get(name, {})
        if one.get("path") != known.get("path") and one.get("path") not in usual:
            yield f"the tests {name} are made from another file"
        for key in ("test", "harness", "required-features"):
            if one.get(key) != known.get(key) and one.get(key) not in (True, None):
                yield f"{key} of the tests {name}"
    for name, one in before.items():
        if name not in after and one.get("path") not in (f"tests/{name}.rs", f"tests/{name}/main.rs", None):
            yield f"the tests {name} are gone"


def _tests(document: _Table) -> dict[str, _Table]:
    return {str(one.get("name")): one for one in map(_table, _rows(document.get("test")))}


def _members(old: _Table, new: _Table) -> Iterator[str]:
    was, now = _table(old.get("workspace")), _table(new.get("workspace"))
    lost = [one for one in _rows(was.get("members")) if one not in _rows(now.get("members"))]
    left = [one for one in _rows(now.get("exclude")) if one not in _rows(was.get("exclude"))]
    fewer = "default-members" in now and was.get("default-members") != now["default-members"]
    if old.get("workspace") is not None and (lost or left):
        yield "the workspace has fewer members"
    elif fewer:
        yield "default-members was changed"
