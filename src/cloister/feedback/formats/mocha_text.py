"""What mocha prints, with its spec and its dot reporter."""

import re
from collections.abc import Sequence
from itertools import pairwise

from cloister.core.diagnosis import TestResult
from cloister.feedback import plain
from cloister.feedback.api import CheckOutput, Found
from cloister.feedback.formats.jest_json import where

_PASSING = re.compile(r"^ {2}(\d{1,9}) passing \([\w .]{1,20}\)$")
_HEAD = re.compile(r"^ {2}(\d{1,9})\) (\S.*)$")


def mocha_text(output: CheckOutput) -> Found | None:
    """A `Parser`: failing tests by their full title, the others by number."""
    if b" passing (" not in output.out:
        return None
    text = output.out_lines
    ends = [index for index, line in enumerate(text) if _PASSING.match(line)]
    if not ends:
        return None
    passing = _PASSING.match(text[ends[-1]])
    tests: dict[str, TestResult] = {}
    heads = [index for index in range(ends[-1] + 1, len(text)) if _HEAD.match(text[index])]
    for start, stop in pairwise([*heads, len(text)]):
        test = _failing(text[start : min(stop, start + 300)])
        tests.setdefault(test.name, test)
    unlisted = int(passing[1]) if passing else 0
    return Found(tests=tuple(tests.values()), unlisted=unlisted) if tests or unlisted else None


def _failing(text: Sequence[str]) -> TestResult:
    """The titles go down one line each, deeper each time; the last of them ends with a colon."""
    head = _HEAD.match(text[0])
    titles = [head[2] if head else text[0]]
    story: Sequence[str] = text[1:]
    if not titles[0].endswith(":"):
        for index, line in enumerate(text[1:12]):
            titles.append(line.strip())
            if line.endswith(":"):
                story = text[index + 2 :]
                break
    name = plain.name(" ".join(titles).removesuffix(":"))
    file, line = where(list(story), "")
    said = [line.strip() for line in story if not line.lstrip().startswith("at ")]
    return TestResult(name, "failed", file or None, line, plain.message("\n".join(said).strip()) or None)
