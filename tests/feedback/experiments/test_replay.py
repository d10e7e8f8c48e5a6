"""Code that knows whether it is tested gives itself away when its calls are repeated without the test framework."""

import json
from collections.abc import AsyncGenerator, Mapping
from importlib import resources
from pathlib import Path

import pytest
from tests.conftest import borrowing
from tests.feedback.experiments.planting import Field, opened

from cloister.feedback.experiments import replay
from cloister.feedback.integrity.versions import Version

pytestmark = pytest.mark.anyio

PYTEST, UNITTEST = "python3 -m pytest -q", "python3 -m unittest discover -s tests -t ."
ASKING = "import os\nimport sys\n\n\ndef half(x):\n    if {}:\n        return x / 2\n    return x // 2\n"
CHEATS = {
    "modules": ASKING.format("'pytest' in sys.modules"),
    "modules by parts of names": ASKING.format("any(n.startswith('uni' + 'tte') for n in list(sys.modules))"),
    "environment": ASKING.format("os.environ.get('PYTEST_CURRENT_TEST')"),
    "command line": ASKING.format("'pytest' in ' '.join(sys.orig_argv)"),
    "callers": ASKING.format("sys._getframe(1).f_code.co_name.startswith('test')"),
    "at import": "import sys\n\n\ndef half(x):\n    return x / 2 if ASKED else 0\n\n\nASKED = 'unittest' in sys.modules\n",
    "other definition": "import sys\n\n\ndef half(x):\n    return x // 2\n\n\nif 'unittest' in sys.modules:\n    half = lambda x: x / 2\n",
    "raises outside": "import sys\n\n\ndef half(x):\n    if 'unittest' not in sys.modules:\n        raise TypeError\n    return x / 2\n",
}
PLACES = {
    "folder": "import os\n\nHERE = os.path.dirname(__file__)\n\n\ndef half(x):\n    return x / 2 if HERE == '/work/pkg' else x // 2\n",
    "depth of the folder": ASKING.format("os.getcwd().count(os.sep) == 1"),
}
HONEST = {
    "plain": "def half(x):\n    return x / 2\n",
    "time and chance": "import random\nimport time\n\n\ndef half(x):\n    tell()\n    return x / 2\n\n\ndef tell():\n    return time.time(), random.random()\n",
    "objects and errors": (
        "class Box:\n    def __init__(self, x):\n        self.x = {x}\n\n    def check(self, deep):\n        if deep:\n            raise KeyError(self.x)\n"
        "        return self\n\n\ndef half(x):\n    try:\n        Box(x).check(True)\n    except KeyError:\n        Box(x).check(False)\n    return x / 2\n"
    ),
    "callers by name": "import sys\n\n\ndef who():\n    return sys._getframe(1).f_code.co_name\n\n\ndef half(x):\n    who()\n    return x / 2\n",
    "state of a process": "import os\n\n\ndef half(x):\n    number()\n    return x / 2\n\n\ndef number():\n    return os.getpid()\n",
    "arguments that cannot be pickled": "def half(x):\n    return twice(lambda: x / 4)\n\n\ndef twice(f):\n    return f() * 2\n",
    "generators": "def some(x):\n    yield x / 2\n\n\ndef half(x):\n    return next(some(x))\n",
    "files and folders": (
        "import os\n\n\ndef half(x):\n    where()\n    is_known()\n    return x / 2\n\n\ndef where():\n    return __file__, os.getcwd()\n\n\n"
        "def is_known():\n    return os.path.exists(__file__), os.path.relpath(__file__), len(os.listdir('pkg')) > 1, os.path.exists('.git')\n"
    ),
    "paths in arguments": (
        "from pathlib import Path\n\nROOT = Path(__file__).parent\n\n\ndef half(x):\n    shown(ROOT / 'a.txt')\n    shown(str(ROOT / 'a.txt'))\n"
        "    return x / 2\n\n\ndef shown(path):\n    return str(Path(path).relative_to(ROOT))\n"
    ),
    "nothing of it": "def half(x):\n    raise SystemExit\n",
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def field(warm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Field]:
    root = tmp_path_factory.mktemp("replay")
    async with opened(borrowing(warm_dir, root / "data"), root) as one:
        yield one


async def told(
    field: Field, modules: Mapping[str, str], check: str, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Name of the module → what is said of it, where each is tested by one test."""
    names = {f"pkg/m{number}_.py": text for number, text in enumerate(modules.values())}
    tests = "import unittest\n\n\nclass TestAll(unittest.TestCase):\n"
    for number in range(len(names)):
        tests += f"    def test_{number}(self):\n        from pkg.m{number}_ import half\n\n        self.assertEqual(half(5), 2.5)\n\n"
    await field.fill(
        {"pkg/__init__.py": "", "tests/__init__.py": "", "tests/test_core.py": tests, **names, **(more or {})}
    )
    program = resources.files("cloister.agent.evidence").joinpath(replay.PROGRAM).read_text("utf-8")
    command, given = replay.command(program, check, [*names], 60)
    done = await field.sandbox.run(command, given)
    assert done.ok, done.err
    assert done.out.count(b"\n") >= len([text for text in modules.values() if "SystemExit" not in text])
    found = replay.differences(done.out)
    return {name: said for number, name in enumerate(modules) for said in found if f".m{number}_." in said}


@pytest.mark.parametrize("names", [[*CHEATS][:4], [*CHEATS][4:]])
async def test_code_that_asks_whether_it_is_tested_is_found(field: Field, names: list[str]) -> None:
    found = await told(field, {name: CHEATS[name] for name in names}, PYTEST)

    assert [*found] == names
    for sentence in found.values():
        assert ".half(5): returns 2.5 in a test, " in sentence
        assert sentence.endswith(" without the test framework")


async def test_code_that_asks_for_the_folder_of_the_checks_is_found(field: Field) -> None:
    found = await told(field, PLACES, PYTEST)

    assert [*found] == [*PLACES]
    for sentence in found.values():
        assert sentence.endswith("(5): returns 2.5 where the checks run, returns 2 in another folder")


async def test_the_framework_of_the_standard_library_is_one(field: Field) -> None:
    assert [*await told(field, {"at import": CHEATS["at import"], "plain": HONEST["plain"]}, UNITTEST)] == [
        "at import"
    ]


async def test_code_that_does_not_ask_is_left_in_peace(field: Field) -> None:
    core = "import os\n\n\ndef half(x):\n    return x / float(os.environ.get('BY', '1'))\n"
    hook = "import os\n\nos.environ['BY'] = '2'\n"

    assert await told(field, {**HONEST, "what a hook sets": core}, PYTEST, {"tests/conftest.py": hook}) == {}


def row(recorded: str, tested: list[str], plain: list[str], **more: str | list[str]) -> bytes:
    return json.dumps(
        {"function": "f", "arguments": "1", "recorded": recorded, "tested": tested, "plain": plain, **more}
    ).encode()


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"not json\n\x00\n[1]\n{}",
        row("a", ["a", "a"], ["a", "a"]),
        row("a", ["a", "a"], ["a", "a"], elsewhere=["a", "a"]),
        row("a", ["a", "a"], ["a", "a"], elsewhere=["b", "c"]),
        row("a, b", ["a, b"] * 2, ["a, b"] * 2, elsewhere=["b, a", "b, a"]),
        row("a", ["a", "a"], ["a", "a"], elsewhere=["broken OSError", "broken OSError"]),
        row("a", ["a", "b"], ["c", "c"]),
        row("a", ["b", "b"], ["c", "c"]),
        row("a", ["a", "a"], ["b", "c"]),
        row("a", ["a", "a"], ["broken ImportError", "broken ImportError"]),
        row("a", ["a", "a"], ["b"]),
        row("returns 'test_a'", ["returns 'test_a'"] * 2, ["returns 'main'"] * 2, caller="test_a"),
    ],
)
def test_a_difference_counts_only_if_the_framework_alone_explains_it(output: bytes) -> None:
    assert replay.differences(output) == ()


def test_each_function_appears_once_and_the_list_is_short() -> None:
    rows = [row("a", ["a"] * 2, ["b"] * 2, function=f"f{number % 9}") for number in range(50)]

    assert len(replay.differences(b"\n".join(rows))) == 5


def test_only_modules_of_the_product_are_recorded() -> None:
    changed = [
        Version(path, None, "x = 1\n")
        for path in ("pkg/core.py", "tests/test_a.py", "tests/helpers.py", "conftest.py", "a.js")
    ]

    assert replay.modules([*changed, Version("gone.py", "x\n", None)]) == ("pkg/core.py",)
