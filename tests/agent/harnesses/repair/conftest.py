"""A small repository on a local computer, and a search over it."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cloister.harnesses.repair.api import Chosen, Localised, Trial
from cloister.harnesses.repair.candidates import candidates
from cloister.harnesses.repair.choose import enough
from cloister.harnesses.repair.rules.api import facts_of
from cloister.harnesses.repair.suite import Suite, suite_of
from cloister.harnesses.repair.trials import Trials
from cloister.testing.local import LocalComputer

PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q"


class Repo:
    """Files on a local computer, and what a search over them found."""

    def __init__(self, root: Path, files: Mapping[str, str]) -> None:
        self.computer = LocalComputer(root)
        for name, text in files.items():
            path = self.computer.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.trials: list[Trial] = []

    def files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.computer.work)): path.read_text()
            for path in sorted(self.computer.work.rglob("*"))
            if path.is_file()
        }

    async def localise(self, command: str) -> Localised:
        async with Trials(self.computer, suite(command), workers=1) as trials:
            return await trials.localise()

    async def repair(
        self, command: str, *, seed: int = 0, hints: Sequence[str] = (), longest: float = 0.0
    ) -> Chosen | None:
        async with Trials(self.computer, suite(command)) as trials:
            found = await trials.localise(hints, longest=longest)
            sources = await trials.sources(dict.fromkeys((*found.paths, *found.modules)))
            order = candidates(sources, found.suspects, facts_of(found.failing), seed)
            self.trials, plausible = [], list[Trial]()
            async for trial in trials.over(order, sources):
                self.trials.append(trial)
                plausible += [trial] if trial.plausible else []
                if enough(len(self.trials), plausible):
                    break
            return await trials.choose(plausible, sources) if plausible else None


def suite(command: str) -> Suite:
    found = suite_of(command)
    assert found is not None
    return found


@pytest.fixture
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node cannot be fetched here")
    return found


@pytest.fixture
def go() -> str:
    found = shutil.which("go")
    if found is None:
        pytest.skip("go cannot be fetched here")
    return found


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runners of scripts, from the registry."""
    folder = tmp_path_factory.mktemp("runners")
    (folder / "package.json").write_text("{}")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "mocha", "jest", "vitest"]
    try:
        subprocess.run(install, cwd=folder, check=True, capture_output=True, timeout=240)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("the runners cannot be fetched here")
    return folder / "node_modules"
