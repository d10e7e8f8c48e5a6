"""The `[[trigger]]` and `[[environment]]` tables of the settings, and the prompt that a request from outside becomes. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from cloister.core.addresses import check_address, repository_matches
from cloister.core.requests import BudgetWish, Origin, RunRule, Tier
from cloister.core.text import bounded, harmless, one_line

VALUE_CHARS = 20_000
"""Most of one value in a prompt."""
PROMPT_CHARS = 120_000
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_LISTABLE = re.compile(r"[^/*\s]+(?:/[^/*\s]+)+(?:/[^/\s]+)?")
"""The host and the owner are named; only the last part may have `*`."""
_FIELD = re.compile(r"\{\{ ?([A-Za-z0-9_.@-]{1,200}) ?\}\}")
_ASKED = "{{title}}\n\n{{body}}\n\n{{said}}"


class _Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="on", kw_only=True):
    """What all triggers say about the runs that they start."""

    name: str
    model: str | None = None
    kind: str | None = None
    harness: str | None = None
    tier: Tier = "auto"
    template: str = "default"
    checks: tuple[str, ...] = ()
    exclude_tests: tuple[str, ...] = ()
    allow_test_changes: tuple[str, ...] = ()
    setup: str = "auto"
    budget: BudgetWish = BudgetWish()
    rules: tuple[RunRule, ...] = ()
    """Its policy: rules for its runs, under those of the layers above."""
    allow_hosts: tuple[str, ...] = ()
    pull_request: bool | None = None
    at_most: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 20
    """Unfinished runs at a time; further requests wait."""


PollSeconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
"""How often the forge is asked, where its webhooks cannot reach this machine. 0: webhooks only."""


class LabelTrigger(_Trigger, frozen=True, tag="label"):
    """A label on an issue or a pull request of a forge starts a run."""

    label: str
    repos: tuple[str, ...]
    """Which repositories: `host/path`, with `*` for any characters."""
    prompt: str = _ASKED
    poll: PollSeconds = 0


class MentionTrigger(_Trigger, frozen=True, tag="mention"):
    """`@name` in an issue or a comment of a forge starts a run."""

    mention: str
    """The name without `@`: the account of the token."""
    repos: tuple[str, ...]
    prompt: str = _ASKED
    poll: PollSeconds = 0


class HookTrigger(_Trigger, frozen=True, tag="hook", rename={"source": "from"}):
    """A webhook of any sender starts a run. It arrives at `/v1/hooks/NAME`."""

    source: str
    """Where the secret is, as in a credential."""
    repo: str
    prompt: str
    """`{{a.b.0}}` is the value at this path of the JSON body."""
    ref: str | None = None


class ScheduleTrigger(_Trigger, frozen=True, tag="schedule"):
    """The clock starts a run."""

    cron: str
    repo: str
    prompt: str
    zone: str = "UTC"
    ref: str | None = None


class SlackTrigger(_Trigger, frozen=True, tag="slack"):
    """A mention of an app of Slack starts a run, and its thread talks with the run."""

    bot: str
    """Where the bot's token is, as in a credential."""
    repo: str
    people: tuple[str, ...]
    """Who may start and steer runs: ids of users, or `*` for all of the workspace."""
    app: str | None = None
    """Where the app's token for the socket is; None: no socket."""
    signing: str | None = None
    """Where the signing secret is. Events then arrive at `/v1/hooks/NAME`."""
    approvers: tuple[str, ...] = ()
    """Who may answer questions; empty: `people`."""
    prompt: str = "{{said}}"
    ref: str | None = None
    api: str = "https://slack.com/api"

    @property
    def sources(self) -> tuple[str, ...]:
        """Where its secrets are."""
        return tuple(one for one in (self.bot, self.app, self.signing) if one)


TriggerEntry = LabelTrigger | MentionTrigger | HookTrigger | ScheduleTrigger | SlackTrigger


def check_triggers(
    entries: Sequence[TriggerEntry], check_cron: Callable[[str, str], str | None]
) -> str | None:
    """Why the tables cannot be used, as one sentence; None if they can."""
    names = [one.name for one in entries]
    for one in entries:
        if not _NAME.fullmatch(one.name):
            return f"a trigger's name has small letters, digits and dashes, not {one.name[:80]!r}."
        if names.count(one.name) > 1:
            return f"two triggers are called {one.name!r}."
        problem = _problem(one, check_cron) or (None if one.prompt.strip() else "its prompt is empty")
        if problem:
            return f"trigger {one.name!r}: {problem.rstrip('.')}."
    return None


def _problem(one: TriggerEntry, check_cron: Callable[[str, str], str | None]) -> str | None:
    match one:
        case LabelTrigger() | MentionTrigger():
            word = one.label if isinstance(one, LabelTrigger) else one.mention
            if not word.strip() or word.startswith("@"):
                return "it needs a label, or the name of an account without @"
            if not one.repos:
                return "repos is empty: name the repositories, such as github.com/acme/*"
            wide = (pattern for pattern in one.repos if one.poll and not _LISTABLE.fullmatch(pattern))
            if (pattern := next(wide, None)) is not None:
                return f"with poll, repos has names such as github.com/acme/* with one owner, not {pattern[:80]!r}"
            return None
        case HookTrigger():
            return check_address(one.repo)
        case ScheduleTrigger():
            return check_cron(one.cron, one.zone) or check_address(one.repo)
        case SlackTrigger():
            if one.app is None and one.signing is None:
                return "it needs app for a socket, or signing for webhooks"
            url = urlsplit(one.api)
            if url.scheme != "https" and not (
                url.scheme == "http" and url.hostname in ("127.0.0.1", "localhost")
            ):
                return "api is an https address: the token must not travel in the clear"
            return check_address(one.repo)


def origin_of(entry: TriggerEntry) -> Origin:
    """Whose words the prompt of its runs holds: the operator's and those of people whom the operator named are trusted."""
    match entry:
        case LabelTrigger() | MentionTrigger():
            return "issue"
        case HookTrigger():
            return "web"
        case ScheduleTrigger() | SlackTrigger():
            return "user"


def allows(entry: LabelTrigger | MentionTrigger, address: str) -> bool:
    """True if a trigger serves the repository at `address`."""
    return any(repository_matches(pattern, address) for pattern in entry.repos)


def fill(template: str, value: Callable[[str], object]) -> str:
    """The prompt: each `{{field}}` is replaced by its value as bounded text, once; values are not read for fields."""

    def text(found: re.Match[str]) -> str:
        given = value(found[1])
        match given:
            case None:
                return "(none)"
            case str():
                return bounded(harmless(given), VALUE_CHARS)
            case _:
                return bounded(harmless(msgspec.json.encode(given).decode()), VALUE_CHARS)

    return bounded(_FIELD.sub(text, template).strip(), PROMPT_CHARS)


def fill_from(template: str, values: Mapping[str, str]) -> str:
    """The same, from values by name."""
    return fill(template, lambda name: values.get(name) or None)


# Environments that a server keeps ready.

_MINUTES_MAX = 10_080.0


class EnvironmentEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[environment]]` table of the configuration file."""

    repo: str
    ref: str | None = None
    """The branch; None: the default one."""
    cron: str | None = None
    """When it is built again although nothing changed, for newer packages; None: never."""
    zone: str = "UTC"
    minutes: float = 5.0
    """How often the branch is looked at."""
    setup: str = "auto"
    """`auto`, or the command that installs."""


def check_environments(
    entries: Sequence[EnvironmentEntry], check_cron: Callable[[str, str], str | None]
) -> str | None:
    """Why the tables cannot be used, as one sentence; None if they can."""
    for one in entries:
        name = f"the environment of {one_line(one.repo, 80)!r}"
        if not one.repo.strip():
            return "an environment names its repository in `repo`."
        if not 0.1 <= one.minutes <= _MINUTES_MAX:
            return f"{name} has minutes from 0.1 to {_MINUTES_MAX:,.0f}, not {one.minutes:g}."
        if one.setup == "off":
            return f"{name} has no set-up: leave the table out."
        if one.cron is not None and (problem := check_cron(one.cron, one.zone)):
            return f"{name}: {problem}."
    return None
