"""Every kind of forge keeps the promises of pull requests over its own wire, and its failures have one sentence."""

from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlencode

import msgspec
import pytest
from tests.forge.pulls.conftest import place_of
from tests.forge.pulls.descriptions import description
from tests.forge.pulls.talks import Issue, spot_of
from tests.forge.pulls.wires import Forge, Reply, Request
from tests.whole.conformance.suites.pulls import PROMISES, WISH, PullRig

from cloister.app.forges import find_repositories
from cloister.core.errors import OutsideError, UserError
from cloister.forge import Forges
from cloister.forge.pulls.api import Pulls, Repository
from cloister.forge.pulls.hosted import Hosted, client

pytestmark = pytest.mark.anyio

one_kind = pytest.mark.parametrize("forge", ["gitlab"], indirect=True)
"""For what the kinds share."""


@pytest.fixture
async def pulls(forge: Forge) -> AsyncIterator[Repository]:
    async with client() as http:
        yield Hosted(place_of(forge)).pulls(http, f"{forge.url}/team/shop.git")


@pytest.fixture
async def rig(forge: Forge, pulls: Repository) -> PullRig:
    async def say(number: int, who: str, text: str, path: str, line: int) -> None:
        forge.comments.append((number, who, text, path, line))

    async def report(name: str, state: str) -> None:
        forge.jobs.append((name, state))

    async def merge(number: int) -> None:
        forge.pulls[number - 1].state = "merged"

    async def text(number: int) -> tuple[str, str, str]:
        pull = forge.pulls[number - 1]
        return pull.title, pull.body, pull.onto

    async def issue(title: str, text: str, label: str) -> int:
        number = 7 + len(forge.issues)
        made = Issue(number, title, text, "ann", len(forge.comments), {label: "ann"} if label else {})
        forge.issues.append(made)
        return number

    async def talk(number: int, who: str, text: str) -> None:
        forge.comments.append((spot_of(forge, number), who, text, "", 0))

    people = {"gitlab": ("1", "2"), "bitbucket": ("{ann}", "{eve}")}.get(forge.kind, ("ann", "eve"))
    return PullRig(
        pulls,
        say,
        report,
        merge,
        text,
        people,
        logs=forge.kind in ("github", "gitlab"),
        issue=issue,
        talk=talk,
        labels=forge.kind != "bitbucket",
        uploads=forge.kind in ("gitlab", "gitea"),
    )


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_pull_requests_keep_the_promise(
    promise: Callable[[PullRig], Awaitable[None]], rig: PullRig
) -> None:
    await promise(rig)


async def test_every_exchange_is_one_that_the_forge_publishes(forge: Forge, pulls: Pulls) -> None:
    """The server also compares the exchanges of all other tests here, and `forge` fails with what is wrong."""
    published = description(forge.kind)
    if published is None:
        pytest.skip(f"CLOISTER_FORGE_DESCRIPTIONS has no description of {forge.kind}")
    made = await pulls.open(msgspec.structs.replace(WISH, draft=True, reviewers=("ann",)))
    await pulls.update(made.number, WISH)
    forge.jobs.append(("tests", "failed"))
    forge.comments.append((1, "ann", "off by one", "shop/cart.py", 7))
    await pulls.comment(made.number, "done")
    (job,) = (await pulls.read(made.number)).jobs
    await pulls.job_log(job)
    await pulls.close(made.number)
    assert await pulls.access()
    assert published.operations
    assert forge.wrong == []


async def _failure(pulls: Pulls) -> OutsideError:
    with pytest.raises(OutsideError) as caught:
        await pulls.find("fix")
    assert "\n" not in caught.value.message
    return caught.value


def _always(status: int, headers: dict[str, str] | None = None) -> Callable[[Request], Reply]:
    def answer(asked: Request) -> Reply:
        return status, {"message": "said the forge"}, headers or {}

    return answer


@one_kind
@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (401, "forge_denied", False),
        (403, "forge_denied", False),
        (404, "forge_missing", False),
        (409, "forge_refused", False),
        (422, "forge_refused", False),
        (429, "forge_unreachable", True),
        (500, "forge_unreachable", True),
        (503, "forge_unreachable", True),
    ],
)
async def test_a_status_becomes_one_error(
    forge: Forge, pulls: Pulls, status: int, code: str, *, retryable: bool
) -> None:
    forge.faults.append(_always(status))
    error = await _failure(pulls)
    assert (error.code, error.retryable) == (code, retryable)
    assert "said the forge" in error.message


@one_kind
async def test_a_passing_failure_is_tried_again(forge: Forge, pulls: Pulls) -> None:
    failures = [502, 503]
    forge.faults.append(lambda asked: (failures.pop(), {}) if failures else None)
    assert await pulls.find("fix") is None
    assert len(forge.requests) == 3


@one_kind
async def test_too_many_requests_are_repeated_after_the_wait_that_the_forge_names(
    forge: Forge, pulls: Pulls
) -> None:
    answers: list[Reply] = [(403, {"message": "slow down"}, {"Retry-After": "0"})]
    forge.faults.append(lambda asked: answers.pop() if answers else None)
    assert await pulls.find("fix") is None


@one_kind
async def test_a_wait_of_an_hour_is_an_error_that_may_pass(forge: Forge, pulls: Pulls) -> None:
    forge.faults.append(_always(429, {"Retry-After": "3600"}))
    assert (await _failure(pulls)).retryable
    assert len(forge.requests) == 1


@one_kind
async def test_a_change_is_not_repeated_when_its_reply_is_lost(forge: Forge, pulls: Pulls) -> None:
    forge.lost.add("POST")
    with pytest.raises(OutsideError) as caught:
        await pulls.open(WISH)
    assert caught.value.retryable
    assert len(forge.pulls) == 1


@one_kind
async def test_a_reply_that_is_no_json_is_one_sentence(forge: Forge, pulls: Pulls) -> None:
    forge.faults.append(lambda asked: (200, "<html>maintenance</html>"))
    assert (await _failure(pulls)).code == "forge_unclear"


@one_kind
async def test_a_redirect_to_another_host_gets_no_token(forge: Forge, pulls: Pulls) -> None:
    forge.faults.append(_always(301, {"Location": "http://127.0.0.1:9/stolen"}))
    assert (await _failure(pulls)).code == "forge_refused"


@one_kind
async def test_a_renamed_repository_is_followed_on_its_own_host(forge: Forge, pulls: Pulls) -> None:
    def moved(asked: Request) -> Reply | None:
        if "moved" in asked.query or len(forge.requests) > 1:
            return None
        return 301, {}, {"Location": f"{place_of(forge).api}{asked.path}?" + _query(asked)}

    forge.faults.append(moved)
    assert await pulls.find("fix") is None
    assert len(forge.requests) >= 2


def _query(asked: Request) -> str:
    return urlencode(asked.query)


async def test_a_token_without_the_right_to_push_is_named(forge: Forge, pulls: Pulls) -> None:
    forge.may_push = False
    access = await pulls.access()
    assert (access.may_push, bool(access.lacks)) == (False, True)


async def test_the_repositories_of_an_owner_are_found_by_a_pattern(forge: Forge) -> None:
    host = forge.url.removeprefix("http://")
    forges = Forges(places=(place_of(forge),))
    assert await find_repositories(forges, f"{host}/team/sh*") == (f"https://{host}/team/shop",)
    assert await find_repositories(forges, f"https://{host}/team/o*") == ()
    for query in ("*", f"{host}/*", f"{host}/*/shop", "example.org/team/*"):
        with pytest.raises(UserError):
            await find_repositories(forges, query)


@pytest.mark.parametrize("forge", ["bitbucket"], indirect=True)
async def test_a_forge_that_does_not_tell_this_token_who_may_push_is_not_taken_for_a_no(
    forge: Forge, pulls: Repository
) -> None:
    await pulls.open(WISH)
    forge.comments.append((1, "ann", "rename it", "", 0))
    assert (await pulls.read(1)).deaf == ""
    forge.discreet = True
    access = await pulls.access()
    assert (access.may_push, ["no comment or mention is heard" in one for one in access.lacks]) == (
        True,
        [True],
    )
    assert "repository:admin" in (await pulls.read(1)).deaf
    with pytest.raises(OutsideError, match="repository:admin") as caught:
        await pulls.may_write("{ann}")
    assert caught.value.code == "forge_silent"


@pytest.mark.parametrize(
    ("forge", "few", "enough"),
    [("github", "read:user", "repo, workflow"), ("gitlab", "read_api read_repository", "api")],
    indirect=["forge"],
)
async def test_a_token_without_the_scope_lacks_it_whatever_its_owner_may_do(
    forge: Forge, pulls: Repository, few: str, enough: str
) -> None:
    for scopes, may in ((None, True), (enough, True), (few, False)):
        forge.scopes = scopes
        access = await pulls.access()
        assert (access.may_push, [one.startswith("the scope") for one in access.lacks]) == (
            may,
            [] if may else [True],
        )


@pytest.mark.parametrize("forge", ["github"], indirect=True)
async def test_jobs_beyond_the_first_page_are_read(forge: Forge, pulls: Repository) -> None:
    await pulls.open(WISH)
    forge.jobs = [(f"job {number}", "passed") for number in range(250)] + [
        ("last", "failed"),
        ("c", "cancelled"),
    ]
    jobs = (await pulls.read(1)).jobs
    assert (len(jobs), jobs[250].state, jobs[251].state) == (252, "failed", "cancelled")


@pytest.mark.parametrize("forge", ["github"], indirect=True)
async def test_what_has_not_changed_is_not_sent_again(forge: Forge, pulls: Repository) -> None:
    await pulls.open(WISH)
    first = await pulls.read(1)
    asked, before = len(forge.requests), forge.unchanged
    assert await pulls.read(1) == first
    assert forge.unchanged - before == len(forge.requests) - asked > 0
    forge.comments.append((1, "ann", "rename it", "", 0))
    assert [one.text for one in (await pulls.read(1)).remarks] == ["rename it"]
