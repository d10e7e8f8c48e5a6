"""Compares tests in Rust documentation: the examples above an item, or at the top of a file."""

import re
from collections import Counter
from collections.abc import Iterator

from cloister.core.diagnosis import HowWeakened
from cloister.feedback.integrity.versions import inserted

_ITEM = re.compile(
    r"^(?:pub(?:\([\w: ]{1,60}\))? )?(?:(?:async|const|unsafe|default|extern \"\w{1,20}\") ){0,4}"
    r"(?:fn|struct|enum|union|trait|type|mod|const|static|macro_rules!) ?(\w{1,200})"
)
_SKIPS = ("ignore", "no_run", "text")


def weakened(path: str, before: str, after: str | None) -> list[tuple[str, HowWeakened]]:
    """Each weakened example, by the name that `cargo test` gives it without its modules, and how."""
    old, new = _examples(before), _examples(after or "")
    found: list[tuple[str, HowWeakened]] = []
    for (item, number), lines in old.items():
        name = f"{path} - {item}" if item else path
        now = new.get((item, number))
        if now is None:
            found.append((name, "deleted"))
        elif _skips(now[0]) and not _skips(lines[0]):
            found.append((name, "skipped"))
        elif now[0] != lines[0] or inserted(lines, now) is None:
            found.append((name, "changed"))
    return found


def names(test: str, weakened_name: str) -> bool:
    """True if the name in a `weakened` result means this test of `cargo test`."""
    bare = re.sub(r" \(\d{1,9}\)$", "", test)
    file, _, item = bare.partition(" - ")
    return weakened_name == (f"{file} - {item.rpartition('::')[2]}" if item else file)


def _examples(text: str) -> dict[tuple[str, int], list[str]]:
    """(item, number) of each example → the words on its fence, then its lines."""
    found: dict[tuple[str, int], list[str]] = {}
    many = Counter[str]()
    for item, block in _blocks(text):
        many[item] += 1
        found[item, many[item]] = block
    return found


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each example with the item below it, or with an empty name if it is about the file."""
    waiting: list[list[str]] = []
    current: list[str] | None = None
    for line in text.split("\n"):
        bare = line[:2_000].strip()
        if bare.startswith(("///", "//!")):
            said = " ".join(bare[3:].split())
            if not said.startswith("```"):
                if current is not None and said:
                    current.append(said)
                continue
            if current is None:
                current = [said.strip("` ")]
                continue
            if bare.startswith("//!"):
                yield "", current
            else:
                waiting.append(current)
            current = None
        elif bare and not bare.startswith(("#", "//", ")", "]")):
            item = _ITEM.match(bare)
            yield from ((item[1], block) for block in waiting if item)
            waiting, current = [], None


def _skips(fence: str) -> bool:
    return any(word in _SKIPS for word in re.split(r"[, ]", fence))
