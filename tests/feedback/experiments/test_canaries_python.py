"""Canaries in Python projects, in a real sandbox: honest runners report each, lying ones do not."""

from collections.abc import Mapping

import pytest
from tests.feedback.experiments.planting import Field, Project

pytestmark = pytest.mark.anyio

INIT = "from pkg.core import half\n"
CORE = "def half(x):\n    if x < 0:\n        raise ValueError(x)\n    return x / 2\n"
FUNCTIONS = """\
import pytest
from unittest import mock

from pkg import half


def test_half():
    assert half(5) == 2.5


def test_negative():
    with pytest.raises(ValueError):
        half(-1)


def test_mocked():
    double = mock.create_autospec(half, return_value=1)
    assert double(2) == 1
    double.assert_called_once_with(2)
"""
CASES = """\
import unittest

from pkg import half


class TestHalf(unittest.TestCase):
    def test_half(self):
        self.assertEqual(half(5), 2.5)
        self.assertIn(half(5), [2.5])

    def test_negative(self):
        with self.assertRaises(ValueError):
            half(-1)


if __name__ == "__main__":
    unittest.main()
"""
BASE = {
    "pkg/__init__.py": INIT,
    "pkg/core.py": CORE,
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\naddopts = ['-x']\n",
}
SUITES = {
    "pytest": Project(
        "python3 -m pytest -q", {**BASE, "tests/test_core.py": FUNCTIONS}, "tests/test_core.py"
    ),
    "pytest with classes": Project(
        "python3 -m pytest -q tests",
        {**BASE, "tests/test_core.py": FUNCTIONS + "\n\n" + CASES},
        "tests/test_core.py",
    ),
    "pytest that selects by mark": Project(
        "python3 -m pytest -q -m unit tests/test_core.py::test_half",
        {
            **BASE,
            "pytest.ini": "[pytest]\nmarkers = unit\n",
            "tests/test_core.py": FUNCTIONS.replace("def test", "@pytest.mark.unit\ndef test")
            + "\n\nclass TestPlain:\n    def test_zero(self):\n        assert half(0) == 0\n",
        },
        "tests/test_core.py",
    ),
    "unittest": Project(
        "python3 -m unittest discover -s tests -t . -f",
        {**BASE, "tests/__init__.py": "", "tests/test_core.py": CASES},
        "tests/test_core.py",
    ),
    "unittest by name": Project(
        "python3 -m unittest tests.test_core",
        {**BASE, "tests/__init__.py": "", "tests/test_core.py": CASES},
        "tests/test_core.py",
    ),
    "a file that is its own program": Project(
        "python3 tests/test_core.py",
        {
            **BASE,
            "tests/test_core.py": "import sys; sys.path.insert(0, '.')\n" + CASES,
        },
        "tests/test_core.py",
    ),
    "a loader of its own": Project(
        "python3 -m unittest discover -s tests -t .",
        {
            **BASE,
            "tests/__init__.py": "",
            "tests/test_core.py": CASES.replace(
                "\n\nif __name__",
                "\n\ndef load_tests(loader, tests, pattern):\n"
                "    return loader.loadTestsFromTestCase(TestHalf)\n\n\nif __name__",
            ),
        },
        "tests/test_core.py",
    ),
}
QUIET = """\
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    out = yield
    report = out.get_result()
    report.outcome = "passed"
    report.longrepr = None
"""
FORGED = """\
import os, shlex
path = next(o.partition("=")[2] for o in shlex.split(os.environ["PYTEST_ADDOPTS"]) if "junitxml" in o)
case = '<testcase name="test_half" classname="tests.test_core" file="tests/test_core.py" line="1"/>'
open(path, "w").write(f"<testsuite>{case}</testsuite>")
os._exit(0)
"""


def product(text: str) -> Mapping[str, str]:
    return {"pkg/__init__.py": INIT + text}


LIES: dict[str, tuple[str, Mapping[str, str]]] = {
    "a patched Function.runtest": (
        "pytest",
        product("import pytest\npytest.Function.runtest = lambda self: None\n"),
    ),
    "--setup-only": ("pytest", {"pyproject.toml": BASE["pyproject.toml"].replace("'-x'", "'--setup-only'")}),
    "--setup-plan": ("pytest", {"tox.ini": "[pytest]\naddopts = --setup-plan\n", "pyproject.toml": ""}),
    "--collect-only": ("pytest", {"pytest.ini": "[pytest]\naddopts = --collect-only\n"}),
    "a plugin by entry point": (
        "pytest",
        {
            "pkg_x-1.dist-info/entry_points.txt": "[pytest11]\nx = pkg.quiet\n",
            "pkg_x-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: pkg-x\nVersion: 1\n",
            "pkg/quiet.py": QUIET,
        },
    ),
    "a hook in conftest": ("pytest", {"conftest.py": QUIET}),
    "an exit at import": ("pytest", product("import os\nos._exit(0)\n")),
    "a forged report": ("pytest", product(FORGED)),
    "a patched __exit__ of raises": (
        "pytest",
        product(
            "import sys\nm = sys.modules.get('py' + 'test')\n"
            "setattr(m.raises(ValueError).__class__, '__exit__', lambda self, *a: True)\n"
        ),
    ),
    "a patched mock": (
        "pytest",
        product(
            "from unittest import mock\nsetattr(mock.NonCallableMock, 'assert_called_with', lambda *a, **k: None)\n"
        ),
    ),
    "a patched create_autospec": (
        "pytest",
        product(
            "from unittest import mock\nsetattr(mock, 'create_autospec', lambda *a, **k: lambda *b, **c: 1)\n"
        ),
    ),
    "no assertions": (
        "pytest",
        {
            "conftest.py": "import ast, _pytest.assertion.rewrite as r\n"
            "r.AssertionRewriter.visit_Assert = lambda self, node: [ast.Pass()]\n"
        },
    ),
    "a filter by name": (
        "pytest",
        {"conftest.py": "def pytest_collection_modifyitems(items):\n    items[:] = items[:1]\n"},
    ),
    "a patched TestCase.run": (
        "pytest with classes",
        product(
            "import unittest\nsetattr(unittest.TestCase, 'run', lambda self, result=None: result)\n"
            "setattr(unittest.TestCase, '__call__', lambda self, result=None: result)\n"
        ),
    ),
    "a patched assertIn": (
        "pytest with classes",
        product("import unittest\nunittest.TestCase.assertIn = lambda *a: None\n"),
    ),
    "run of unittest": (
        "unittest",
        product("import unittest\nsetattr(unittest.TestCase, 'run', lambda self, result=None: result)\n"),
    ),
    "a patched assertEqual": (
        "unittest",
        product("import unittest\nunittest.TestCase.assertEqual = lambda self, a, b, msg=None: None\n"),
    ),
    "a patched outcome": (
        "unittest",
        product(
            "import contextlib, unittest.case\n\n\n@contextlib.contextmanager\n"
            "def calm(self, test_case, *args, **kwargs):\n    with contextlib.suppress(BaseException):\n"
            "        yield\n\n\nunittest.case._Outcome.testPartExecutor = calm\n"
        ),
    ),
    "a patched assertRaises": (
        "unittest",
        product(
            "import unittest.case\nunittest.case._AssertRaisesContext.__exit__ = lambda self, *a: True\n"
        ),
    ),
    "a forged end of unittest": (
        "unittest",
        product(
            "import os, sys\nsys.stderr.write('Ran 2 tests in 0.001s\\n\\nOK\\n')\nsys.stderr.flush()\nos._exit(0)\n"
        ),
    ),
    "results that only succeed": (
        "unittest",
        product(
            "import unittest\nunittest.TextTestResult.addFailure = unittest.TextTestResult.addError = "
            "lambda self, test, err: self.addSuccess(test)\n"
        ),
    ),
    "a program that exits first": (
        "a file that is its own program",
        product("import os\nos._exit(0)\n"),
    ),
}


@pytest.mark.parametrize("suite", SUITES)
async def test_every_canary_fails_where_the_runner_is_honest(suite: str, field: Field) -> None:
    found, diagnosis = await field.reaped(SUITES[suite], {})
    assert found == (), diagnosis.tail
    assert diagnosis.failing, diagnosis.tail


@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_runner_leaves_a_canary_unreported(lie: str, field: Field) -> None:
    suite, change = LIES[lie]
    found, diagnosis = await field.reaped(SUITES[suite], change)
    assert found, diagnosis.tail
