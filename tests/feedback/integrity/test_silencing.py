"""A complaint that was hushed up is not mended."""

import pytest

from cloister.core.diagnosis import Diagnosis, Diagnostic
from cloister.feedback.compare import compare
from cloister.feedback.integrity.versions import Version
from cloister.feedback.integrity.weakening import may_matter, weakenings

RED = Diagnosis("ruff check", 1, 1.0, diagnostics=(Diagnostic("unused", file="shop.py", line=3),))
CODE = "import os\n\n\ndef f():\n    x = 1\n"
STRICT = '{\n  "compilerOptions": {\n    "strict": true\n  }\n}\n'


def green_after(version: Version, base: Diagnosis = RED) -> bool:
    assert may_matter(version.path)
    now = Diagnosis(base.check, 0, 1.0, weakened=weakenings([version]))
    return compare([base], [now]).green


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("shop.py", CODE, CODE.replace("x = 1", "x = 1  # noqa: F841")),
        ("shop.py", CODE, "# ruff: noqa\n" + CODE),
        ("shop.py", CODE, CODE.replace("x = 1", "x: int = ''  # type: ignore[assignment]")),
        ("pyproject.toml", "[tool.ruff]\n", "[tool.ruff]\nlint.ignore = ['F841']\n"),
        ("pyproject.toml", "[tool.mypy]\nstrict = true\n", "[tool.mypy]\n"),
        ("ruff.toml", None, "ignore = ['F841']\n"),
        (".flake8", "[flake8]\n", "[flake8]\nmax-line-length = 300\n"),
        ("setup.cfg", "[flake8]\n", "[flake8]\nignore = E501\n"),
        ("mypy.ini", "[mypy]\n", "[mypy]\nignore_errors = True\n"),
        ("eslint.config.js", "export default [];\n", "export default [{ ignores: ['**'] }];\n"),
        (".eslintignore", None, "shop.js\n"),
        ("tsconfig.json", STRICT, STRICT.replace("true", "false")),
        ("tsconfig.json", STRICT, STRICT.replace('    "strict": true\n', "")),
        ("tsconfig.json", STRICT, STRICT.replace("}\n}", '},\n  "exclude": ["src"]\n}')),
    ],
)
def test_a_silenced_linter_is_not_green(path: str, before: str | None, after: str) -> None:
    assert not green_after(Version(path, before, after))


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("shop.py", CODE, CODE.replace("    x = 1", "    pass")),
        ("shop.py", CODE + "y = 1  # noqa\n", "import os\ny = 1  # noqa\n"),
        # In a file that nobody complained of, it is a choice.
        ("cart.py", None, "import odd  # type: ignore\n"),
        ("pyproject.toml", "[tool.ruff]\n", "[tool.ruff]\n\n[project]\nname = 'shop'\n"),
        ("tsconfig.json", STRICT, STRICT.replace("true", 'true,\n    "lib": ["es2022"]')),
    ],
)
def test_a_fixed_complaint_is_green(path: str, before: str | None, after: str) -> None:
    assert green_after(Version(path, before, after))


def test_settings_may_change_where_the_tool_was_content_all_along() -> None:
    settings = Version("pyproject.toml", "[tool.ruff]\n", "[tool.ruff]\nline-length = 110\n")

    assert green_after(settings, Diagnosis("ruff check", 0, 1.0))
