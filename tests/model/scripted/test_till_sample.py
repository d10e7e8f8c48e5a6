"""The sample for the embedded model has the bug it is said to have, and one line repairs it."""

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def _code(till: Path) -> int:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(argv, cwd=till, env=env, capture_output=True, check=False).returncode


def test_the_sample_is_red_and_one_line_makes_it_green(tmp_path: Path) -> None:
    till = shutil.copytree(EXAMPLES / "till", tmp_path / "till", ignore=shutil.ignore_patterns("__pycache__"))
    assert _code(till) == 1
    source = till / "till.py"
    source.write_text(source.read_text().replace("result = price", "result += price"))
    assert _code(till) == 0
