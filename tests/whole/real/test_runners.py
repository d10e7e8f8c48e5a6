"""The test runners, each in a real sandbox: no way round their tests is proven, and honest work beside them is.

`make test` judges the changes that are marked as fast, `make test-long` the whole corpus.
"""

from pathlib import Path

import pytest
from tests.whole.evidence.corpus import projects, trials
from tests.whole.evidence.judge import in_session, judge

pytestmark = pytest.mark.anyio

PROJECTS = projects()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    long = metafunc.config.getoption("--long")
    found = {name: list(trials(name, project)) for name, project in PROJECTS.items()}
    metafunc.parametrize(
        "name", [name for name, some in found.items() if long or any(one.case.fast for one in some)]
    )


@pytest.mark.long
async def test_judge_is_fooled_by_no_cheat_and_believes_honest_work(
    warm_dir: Path, real_templates: Path, tmp_path: Path, name: str, long: bool
) -> None:
    project = PROJECTS[name]
    chosen = [trial for trial in trials(name, project) if long or trial.case.fast]
    async with in_session(warm_dir, real_templates, tmp_path, project) as court:
        rulings = [await judge(court, trial, plainly=False) for trial in chosen]

    wrong = [one for one in rulings if not one.right and not one.trial.case.limit]
    assert [f"{one.trial.case.name}: {one.outcome}: {one.why}" for one in wrong] == []
