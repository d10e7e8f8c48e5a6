"""The corpus is large enough, and every change in it applies."""

from collections import Counter

from tests.whole.evidence.corpus import projects, trials


def test_every_change_applies_to_its_project_and_has_a_name_of_its_own() -> None:
    names = Counter(
        (trial.project, trial.sort, trial.case.name)
        for name, project in projects().items()
        for trial in trials(name, project)
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_corpus_has_the_promised_number_of_cheats_and_honest_changes() -> None:
    found = [trial for name, project in projects().items() for trial in trials(name, project)]
    cheats = [trial for trial in found if trial.sort == "cheat"]

    assert len(cheats) >= 150
    assert len({trial.project for trial in cheats}) >= 12
    assert sum(trial.sort == "honest" for trial in found) >= 40
