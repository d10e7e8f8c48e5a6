"""The time that it takes to read and judge a command line grows with its length, and no faster."""

import inspect
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from types import ModuleType
from typing import cast

import anyio
import pytest

from cloister.core import addresses, text
from cloister.policy import decide, file, pattern
from cloister.policy.api import HOLE, Layer, RequestAction, Rule, ToolAction
from cloister.policy.decide import Decider
from cloister.policy.layers import BUILT_IN
from cloister.policy.shell import parse, programs, readonly, unwrap
from cloister.policy.shell.parse import read_commands
from cloister.policy.shell.readonly import only_reads

GROWTH = 8
BOUND = 3 * GROWTH
"""Linear work grows by 8 when the input does, quadratic work by 64."""
LEAST = 0.0005
"""CPU seconds below which a measurement says nothing."""


def cpu(work: Callable[[], object], *, enough: float = 0.0) -> float:
    """The CPU seconds of the fastest of three calls; of the first one that takes no more than `enough`."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
        if best <= enough:
            break
    return best


def assert_linear(make: Callable[[int], Callable[[], object]], size: int) -> None:
    """`make` returns the work on an input of a given size."""
    small = max(cpu(make(size), enough=LEAST), LEAST)
    large = cpu(make(size * GROWTH), enough=BOUND * small)
    assert large <= BOUND * small, f"{large / small:.0f} times the work for {GROWTH} times the input"


def repeated(before: str, unit: str, after: str, size: int) -> str:
    return before + unit * max(1, (size - len(before) - len(after)) // len(unit)) + after


RULES = ("bash:git push*", "bash:*a*b*c*", "bash:curl *", "bash:* --force*", "write:src/**")
DECIDER = Decider((BUILT_IN, Layer("host", tuple(Rule(rule, "deny") for rule in RULES), True)))

LINES = [
    ("sed '", ";sa", "'"),
    ("sed '", "s/[a", "'"),
    ("sed '", "s/[[:a", "'"),
    ("sed '", "[[.a", "'"),
    ("sed 's/", "[a]", "/x/'"),
    ("sed '", "a\\", "'"),
    ("sed -e '", "{", "'"),
    ("sed ", "-e p ", "f"),
    ("awk '", "a-f", "'"),
    ("ls ", "[", ""),
    ("ls ", "[*", ""),
    ("ls ", "{a,", ""),
    ("ls ", "{a,", "}"),
    ("ls ", "\\[", "]"),
    ("ls ", "*?", ""),
    ("echo '", "[$", "'"),
    ("echo '", "[x]", "$('"),
    ("echo $'", "\\x41", "'"),
    ('echo "', "\\$", '"'),
    ("tar ", "--checkpoint-act ", ""),
    ("tar -", "c", ""),
    ("git rebase ", "-k ", ""),
    ("git ", "-C x ", "log"),
    ("xargs ", "-I a ", "x"),
    ("xargs -I a x ", "aa ", ""),
    ("find . ", "-exec a ", ""),
    ("find . ", "-exec a \\; ", ""),
    ("env ", "A=1 ", "x"),
    ("env ", "env ", "x"),
    ("sudo ", "-u x ", "x"),
    ("", "a;", ""),
    ("", "a b|", "a"),
    ("", "git push;", ""),
    ("cat <<E\n", "$(a)\n", "E"),
    ("zip -", "T", "x"),
    ("sqlite3 x '", "\n.", "'"),
    ("sqlite3 x '", " ", ".'"),
    ("cmake -D", "LAUNCHER", ""),
    ("make ", "A", ""),
    ("make ", "A ", ""),
    ("node ", "--x ", ""),
    ("perl -M", "a;", ""),
    ("python3 ", "fd/", ""),
    ("python3 ", "-W a ", ""),
    ("apt-get -o ", "::", ""),
    ("export ", "A=1 ", ""),
    ("export 'A", "_", "=1'"),
    ("read ", "A ", ""),
    ("x=(", "-a ", ")"),
    ("for x in ", "a ", "; do :; done"),
    ("echo ", "${x:-a} ", ""),
    ("echo ", "$((1)) ", ""),
    ("sh -c '", "a;", "'"),
    ("[[ ", "a = b && ", "a ]]"),
    ("CC=", "a-", " make"),
]


@pytest.mark.parametrize("shape", LINES, ids=repr)
def test_judging_a_line_takes_time_linear_in_its_length(shape: tuple[str, str, str]) -> None:
    def judge(line: str) -> None:
        DECIDER.decide(ToolAction("bash", line, anyio.run(read_commands, line)))

    anyio.run(read_commands, "true")  # imports and caches
    assert_linear(lambda size: partial(judge, repeated(*shape, size)), 2_000)


async def read(line: str) -> bool:
    return (await read_commands(line)).unclear is not None


def test_line_that_is_too_long_is_not_read_at_all() -> None:
    assert anyio.run(read, "true " + "x" * 40_000)
    assert not anyio.run(read, "true " + "x" * 30_000)


MODULES = (parse, programs, unwrap, readonly, pattern, decide, file, addresses, text)
UNITS = (
    *(
        "a",
        "A",
        "e",
        " ",
        "\n",
        "-",
        "--",
        "=",
        "/",
        "[",
        "]",
        "{",
        "\\",
        ";",
        ":",
        "::",
        "@",
        ".",
        "0",
        "T",
        HOLE,
    ),
    *("-a", "a=", "[a", "a;", "/.", "\x1b[", "\x1b]", "://", "\u0301", "LAUNCHER", "system", "data", "\n ."),
)


def uses(module: ModuleType) -> Iterator[Callable[[str], object]]:
    """Every compiled pattern of a module, as the module uses it."""
    source = inspect.getsource(module)
    for name, value in vars(module).items():
        if isinstance(value, re.Pattern):
            one = cast("re.Pattern[str]", value)
            searches = re.search(rf"\b{name}\.(search|sub|split|find)", source)
            yield from (one.search,) if searches else (one.match, one.fullmatch)
    if module is programs:
        table = programs._RUNS.values()  # pyright: ignore[reportPrivateUsage]
        yield from {re.compile(one.pattern).search for one in table if one.pattern}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_pattern_matches_in_linear_time(module: ModuleType) -> None:
    for call, before, unit in product(uses(module), ("", "-", "-D", "//", "[", "{"), UNITS):
        assert_linear(lambda size, b=before, u=unit, c=call: partial(c, b + u * size), 500)


def file_lines(unit: str, size: int) -> Callable[[], object]:
    return partial(file.lines, unit * size)


SCANNERS: dict[str, Callable[[int], Callable[[], object]]] = {
    "globs with many stars": lambda n: partial(pattern.text_matches, "*a" * 40 + "*b", "a" * 20 * n),
    "globs with unknown text": lambda n: partial(pattern.could_match, "*a*b", f"a{HOLE}" * 20 * n),
    "paths with two stars": lambda n: partial(
        pattern.path_matches, ["**", *["a"] * 20, "**", "b"], ["a"] * 5 * n
    ),
    "paths with dots": lambda n: partial(pattern.normal_path, "a/../" * 20 * n),
    "paths of requests": lambda n: partial(pattern.request_paths, "/" + ";a%2e/" * min(n * 4, 2_700)),
    "requests": lambda n: partial(
        DECIDER.decide, RequestAction("a.test", 443, "GET", "/" + "%2e./" * min(n * 4, 3_200))
    ),
    "paths of tools": lambda n: partial(DECIDER.decide, ToolAction("write", "a/" * min(n * 4, 2_000))),
    "read-only lines": lambda n: partial(only_reads, "ls a|" * min(n, 790)),
    "read-only quotes": lambda n: partial(only_reads, "ls 'a' " * min(n, 570)),
    "addresses": lambda n: partial(addresses.canonical_repository, "https://a@" * 20 * n),
    "addresses of ssh": lambda n: partial(addresses.canonical_repository, "a@" * 20 * n + "b:c"),
    "addresses with a password": lambda n: partial(addresses.check_address, "a:b@" * 20 * n),
    "text with addresses": lambda n: partial(addresses.without_userinfo, "://a:b" * 20 * n),
    "one line": lambda n: partial(text.one_line, "a\x1b]\u0301" * 20 * n),
    "tables of a policy": partial(file_lines, "[[rule]]\naction = 'a'\n"),
    "arrays of a policy": lambda n: partial(file.lines, "a = [" + "'x', # y\n" * 5 * n + "]"),
    "strings of a policy": lambda n: partial(file.lines, 'a = """' + '\\"' * 5 * n + '"""'),
}


@pytest.mark.parametrize("name", SCANNERS)
def test_every_scanner_takes_linear_time(name: str) -> None:
    assert_linear(SCANNERS[name], 100)
