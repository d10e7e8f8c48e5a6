"""The settings as objects of other packages: models and rules. Imports less than the wiring, so commands start fast."""

# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloister.app.settings import ORGANISATION_POLICY, Settings
from cloister.core.attempts import REPAIR, AttemptWish, harness_of, wishes
from cloister.core.errors import UserError
from cloister.core.requests import NewRun
from cloister.policy.api import Policy
from cloister.policy.file import lines
from cloister.policy.layers import layer
from cloister.runs.run_rules import RuleFiles

if TYPE_CHECKING:
    from cloister.model.local.files import Shelf
    from cloister.model.names import Access
    from cloister.model.roles import Job


def usual_model(settings: Settings, name: str | None = None) -> str:
    """The full name of a model; without a name, of the default model. Raises `UserError` when there is none."""
    from cloister.model.roles import Job, chosen

    return chosen(model_access(settings), "code", Job("", name))[0]


def model_access(settings: Settings) -> Access:
    """Keys, addresses and routes of models."""
    from cloister.model.catalog import Amazon
    from cloister.model.names import Access

    file = settings.file
    return Access(
        file.model,
        settings.keys,
        file.model_url,
        file.models,
        Amazon(**settings.amazon),
        files=model_shelf(settings),
    )


def model_shelf(settings: Settings) -> Shelf:
    """The folder of local models' files."""
    from cloister.model.local.files import Shelf

    return Shelf(settings.data_dir / "models", settings.file.local_models)


def job_of(new: NewRun) -> Job:
    """What the choice of a model depends on."""
    from cloister.model.roles import Job

    model = new.model
    talking = [wish for wish in new.attempts if (wish.harness or new.harness) != REPAIR]
    if model is None and all(wish.model is not None for wish in talking):
        # Each attempt names a model, so the configuration need not.
        model = next((wish.model for wish in talking), None)
    return Job(new.repo, model, new.kind)


def harness_for(access: Access, new: NewRun, wish: AttemptWish) -> str:
    """The harness of one attempt: the requested one; else `repair` where no model is configured."""
    from cloister.model.roles import Job, chosen

    try:
        return harness_of(new, wish, model=bool(chosen(access, "code", Job(new.repo, kind=new.kind))))
    except UserError as error:
        return harness_of(new, wish, model=error.code != "no_model")


def calls_models(access: Access, new: NewRun) -> bool:
    """True if some attempt of the run has a harness that calls models."""
    return any(harness_for(access, new, wish) != REPAIR for wish in wishes(new))


def rule_files(settings: Settings) -> RuleFiles:
    """The files that hold the rules above every run. Raises `UserError` (`bad_policy`)."""
    named = settings.file.policy_file
    near = settings.config_path.parent
    return RuleFiles(
        organisation=near / Path(named).expanduser() if named else ORGANISATION_POLICY,
        organisation_required=named is not None,
        host=layer(
            "host",
            settings.file.policy,
            str(settings.config_path),
            may_widen=True,
            at=_rule_lines(settings),
        ),
        projects=tuple((each.repo, near / Path(each.policy).expanduser()) for each in settings.file.project),
    )


def _rule_lines(settings: Settings) -> tuple[int, ...]:
    """The lines of the configuration file's rules; empty when the file has changed since it was read."""
    if not settings.file.policy:
        return ()
    try:
        found = lines(settings.config_path.read_text(encoding="utf-8").replace("\r\n", "\n"))
    except (OSError, ValueError, IndexError):
        return ()
    at = [found.get(("policy", number, "action")) for number in range(len(settings.file.policy))]
    return tuple(line for line in at if line is not None) if None not in at else ()


def host_policy(settings: Settings) -> Policy:
    """The built-in rules, the organisation's and those of the configuration file."""
    return rule_files(settings).above(None)
