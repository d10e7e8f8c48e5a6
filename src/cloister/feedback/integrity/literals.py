"""Reports literals of a failing test in new code: the change may answer the test instead of solving the task.

Code that handles the inputs of a test looks like any special case, so this is a note for the reviewer and not a verdict.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from cloister.core.diagnosis import TestResult
from cloister.core.text import one_line
from cloister.feedback.integrity import text_tests
from cloister.feedback.integrity.base_tests import files_of
from cloister.feedback.integrity.versions import Version, is_test_code, is_test_file, is_test_place

_NOTES = 5
_FILES = 20
_TEXT_CHARS = 500_000
_LITERAL = re.compile(
    r"\"((?:[^\"\\\n]|\\.){2,200})\"|'((?:[^'\\\n]|\\.){2,200})'|`([^`\\\n]{2,200})`|(?<![\w.])(\d{1,20}\.\d{1,20}|\d{2,20})(?![\w.])"
)
_DECIDES = re.compile(
    r"^\s*(?:\}\s{0,20})?(?:(?:else\s{1,20})?if\b|elif\b|case\b|when\b|switch\b|match\b|return\b|while\b)|[=!]==?|=>|\?|^\s*['\"`\d][^:]{0,200}:"
)
"""Lines that decide by a value, map a key, or return."""
_COMMON = re.compile(
    r"^(?:10+|12|16|20|24|30|32|50|60|64|90|99|128|200|255|256|400|404|500|512|1024|3600|65535|[01]\.[05]|utf-?8|\W{1,3}|%\w)$|"
    r"^(?:id|name|key|value|type|data|test|true|false|none|null|GET|POST|ok|error)$",
    re.IGNORECASE,
)


def sources_of(red: Iterable[TestResult], known: Collection[str]) -> tuple[str, ...]:
    """The files of the base that hold these tests, as far as their names tell."""
    found: dict[str, None] = {}
    for test in red:
        names = {name for name in files_of(test) if name}
        owner = test.name.partition("::")[0]
        stem = owner.replace(".", "/")
        for path in known:
            in_package = path.endswith("_test.go") and f"/{owner}".endswith(f"/{path.rpartition('/')[0]}")
            is_class = path.rpartition(".")[0].endswith(stem) and len(stem) > 2
            if path in names or in_package or is_class or any(path.endswith(f"/{name}") for name in names):
                found[path] = None
    return tuple(found)[:_FILES]


def hard_coded(
    red: Sequence[TestResult], tests: Mapping[str, str], changed: Sequence[Version]
) -> tuple[str, ...]:
    """One sentence for each literal of a failing test by which new code of the product decides, or which it returns.

    `tests` are the texts of `sources_of`. Literals that the changed files had before are not new.
    """
    product = [one for one in changed if _is_product(one.path) and one.after is not None]
    base = {word for one in product for word in _literals(one.before or "")}
    new = {word for one in product for word in _deciding(one)} - base
    found: dict[str, str] = {}
    for path, text in tests.items() if new else ():
        for name, body in _bodies(path, text[:_TEXT_CHARS], red).items():
            for word in _literals(body):
                if word in new and not _COMMON.match(word):
                    found.setdefault(word, f"hard-coded: `{one_line(word, 60)}` from {one_line(name, 100)}")
    return tuple(found.values())[:_NOTES]


def _is_product(path: str) -> bool:
    return is_test_code(path) and not is_test_file(path) and not is_test_place(path)


def _literals(text: str) -> Iterator[str]:
    for found in _LITERAL.finditer(text):
        yield next(group for group in found.groups() if group is not None)


def _bodies(path: str, text: str, red: Sequence[TestResult]) -> dict[str, str]:
    """The source of each failing test in a file; of the whole file if none is found."""
    if path.endswith(".py"):
        blocks = _python(text)
    else:
        blocks = {name: "\n".join(lines) for name, lines in text_tests.outlines(path, text)[0].items()}
    wanted = [test.name.partition("[")[0] for test in red]
    mine = {
        name: body for name, body in blocks.items() if any(name.rpartition("::")[2] in one for one in wanted)
    }
    return mine or {path.rpartition("/")[2]: text}


def _python(text: str) -> dict[str, str]:
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    lines = text.split("\n")
    return {
        node.name: "\n".join(lines[(node.decorator_list or [node])[0].lineno - 1 : node.end_lineno])
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }


def _deciding(version: Version) -> Iterator[str]:
    """The literals in new lines that decide, map or return something. Messages and log lines are others."""
    for line in version.new_lines():
        if _DECIDES.search(line) and not re.match(r"\s*(?://|#\s|\*|raise\b|throw\b|log|print)", line):
            yield from _literals(line)
