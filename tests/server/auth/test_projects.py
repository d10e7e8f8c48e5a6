"""Projects with members and links to one run: whom they let in, and how those try to get further."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.server.auth.test_login import Page, logged_in
from tests.server.conftest import Serve, Served
from websockets.exceptions import ConnectionClosed

from cloister.app.people.projects import OF_RUN, People, people_in
from cloister.app.settings import Settings
from cloister.app.tokens import Tokens
from cloister.core.errors import UserError
from cloister.core.events import AskAnswered, AskRaised, PromptReceived
from cloister.core.ids import RunId
from cloister.core.requests import FurtherRepository, NewRun, Role
from cloister.log.api import Fence
from cloister.server.app import openapi_document

pytestmark = pytest.mark.anyio

LEDGER = "https://git.example/acme/ledger"
OPEN = "https://git.example/acme/open"
ROLES: dict[str, Role] = {
    "vera": "viewer",
    "otto": "operator",
    "ada": "admin",
    "ines": "viewer",
    "stan": "viewer",
    "anna": "viewer",
    "max": "viewer",
}
LEVELS = {"ines": "sees", "stan": "steers", "anna": "approves", "max": "administers"}


class House:
    """A server with a run in the project `ledger` and one in no project, and people with tokens."""

    def __init__(self, served: Served) -> None:
        self.served = served
        tokens = Tokens(served.app.settings.data_dir)
        self.tokens = {name: tokens.add(name, role, "tester") for name, role in ROLES.items()}
        self.people = people_in(served.app.settings.data_dir)
        self.people.set_project("ledger", ("git.example/acme/ledger*",))
        for who, level in LEVELS.items():
            self.people.set_member("ledger", who, level)  # type: ignore[arg-type]
        self.closed: Fence
        self.open: Fence

    async def begin(self) -> None:
        self.closed = await self.run(LEDGER, "secret prompt")
        self.open = await self.run(OPEN, "open prompt")

    async def run(self, repo: str, prompt: str, *also: str) -> Fence:
        new = NewRun(prompt, repo, also=tuple(FurtherRepository(one) for one in also))
        run, _ = await self.served.app.backbone.admit(new, "ada")
        fence = await self.served.app.backbone.claim(self.served.app.owner, run)
        assert fence is not None
        return fence

    async def ask(self, who: str, method: str, path: str, body: object = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        return await self.served.client.request(method, path, json=body, headers=headers)

    async def listed(self, who: str, query: str = "") -> list[str]:
        return [row["id"] for row in (await self.ask(who, "GET", f"/v1/runs{query}")).json()]

    async def say(self, who: str, run: RunId) -> tuple[int, str]:
        reply = await self.ask(who, "POST", f"/v1/runs/{run}/say", {"text": f"from {who}"})
        return reply.status_code, reply.json().get("code", "")

    async def audit(self, kind: str) -> list[tuple[str, dict[str, object]]]:
        entries = await self.served.app.backbone.audit(limit=10_000)
        return [(entry.who, json.loads(entry.detail)) for entry in entries if entry.kind == kind]


@pytest.fixture
async def house(serving: Serve) -> AsyncIterator[House]:
    async with serving() as served:
        made = House(served)
        await made.begin()
        yield made
        while Page.opened:
            await Page.opened.pop().client.aclose()


def about_a_run(method: str) -> list[str]:
    paths = openapi_document()["paths"]
    return [
        path for path, methods in paths.items() if path.startswith("/v1/runs/{run}") and method in methods
    ]


async def test_without_projects_every_role_sees_every_run(house: House) -> None:
    house.people.remove_project("ledger")
    assert set(await house.listed("vera")) == {house.closed.run, house.open.run}


async def test_runs_of_a_project_do_not_exist_for_others(house: House) -> None:
    for who in ("vera", "otto"):
        assert await house.listed(who) == [house.open.run]
        assert await house.listed(who, f"?repo={LEDGER}") == []
        assert await house.listed(who, f"?before={house.open.run}") == []
        counts = (await house.ask(who, "GET", "/v1/counts")).json()
        assert sum(one["runs"] for one in counts) == 1
        assert (await house.ask(who, "GET", "/v1/runs/last")).json()["id"] == house.open.run
        reply = await house.ask(who, "GET", f"/v1/compare?a={house.open.run}&b={house.closed.run}")
        assert reply.json()["code"] == "no_such_run"
    for who in ("ada", *LEVELS):
        assert set(await house.listed(who)) == {house.closed.run, house.open.run}


async def test_no_route_about_a_run_answers_someone_who_may_not_see_it(house: House) -> None:
    bodies = {
        "answer": {"answer": "allow"},
        "questions": {"text": "x"},
        "say": {"text": "x"},
        "model": {"model": "script:x"},
        "rewind": {"to": 1},
        "applied": {"where": "x", "branch": "x"},
    }
    name = str(house.closed.run)
    for method in ("get", "post", "delete"):
        assert about_a_run(method)
        for path in about_a_run(method):
            for spelling in (name, name.removeprefix("r-"), name[:6]):
                address = (
                    path.replace("{run}", spelling).replace("{sha256}", "0" * 64).replace("{share}", "sh-x")
                )
                address += "?path=a&line=1" if path.endswith("why") else ""
                if path.endswith("/stream"):
                    address += "?last=1"
                reply = await house.ask(
                    "otto", method.upper(), address, bodies.get(path.rpartition("/")[2], {})
                )
                assert reply.json()["code"] in ("no_such_run", "denied"), (method, path, reply.text)
                assert name not in reply.text.replace(f"'{spelling}'", ""), (method, path)
    assert len(await house.served.app.backbone.read(house.closed.run)) == 2


async def test_a_beginning_that_only_hidden_runs_make_ambiguous_is_not(house: House) -> None:
    reply = await house.ask("vera", "GET", "/v1/runs/r-/row")
    assert reply.json()["id"] == house.open.run


async def test_members_do_what_their_level_says_and_no_more(house: House) -> None:
    run = house.closed.run
    assert await house.say("ines", run) == (403, "denied")
    assert await house.say("vera", run) == (403, "denied")
    assert (await house.say("stan", run))[0] == 200
    asks = [
        AskRaised("a1", 0, "bash: x", "x", 4e9),
        AskRaised("a2", 0, "bash: y", "y", 4e9, approver="admin"),
    ]
    await house.served.app.backbone.append(house.closed, asks)

    async def answer(who: str, ask: str, verdict: str = "allow") -> int:
        body = {"ask": ask, "answer": verdict}
        return (await house.ask(who, "POST", f"/v1/runs/{run}/answer", body)).status_code

    assert [await answer(who, "a1") for who in ("ines", "stan", "anna")] == [403, 403, 200]
    assert [await answer(who, "a2") for who in ("stan", "anna", "max")] == [403, 403, 200]
    found = [event.body for event in await house.served.app.backbone.read(run)]
    assert [(one.who, one.role) for one in found if isinstance(one, AskAnswered)] == [
        ("anna", "operator"),
        ("max", "admin"),
    ]
    for who, allowed in (("ines", False), ("stan", False), ("anna", False), ("max", True)):
        reply = await house.ask(who, "DELETE", f"/v1/runs/{run}")
        assert reply.json()["code"] == ("run_not_finished" if allowed else "denied")
    access = (await house.ask("anna", "GET", f"/v1/runs/{run}/access")).json()
    assert access == {
        "level": "approves",
        "role": "operator",
        "approves": "operator",
        "projects": ["ledger"],
        "shares": True,
    }


async def test_a_level_in_a_project_is_worth_nothing_outside_of_it(house: House) -> None:
    assert await house.say("max", house.open.run) == (403, "denied")
    for method, path in (
        ("GET", "/v1/audit"),
        ("POST", "/v1/tokens"),
        ("POST", "/v1/sandboxes"),
        ("PUT", "/v1/projects/mine"),
        ("DELETE", "/v1/projects/ledger"),
        ("POST", "/v1/gc"),
        ("GET", "/v1/forge?repo=x"),
    ):
        reply = await house.ask("max", method, path, {"name": "x", "repos": ["*"]})
        assert reply.status_code == 403, path


async def test_only_members_who_steer_start_runs_whatever_the_address_looks_like(
    house: House, tmp_path: Path
) -> None:
    real = tmp_path / "srv" / "ledger"
    (real / "sub").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(real)
    house.people.set_project("ledger", ("git.example/acme/ledger*", str(real)))
    spellings = (
        LEDGER,
        f"{LEDGER}.git",
        "https://GIT.example:443/acme//ledger/",
        "git@git.example:acme/ledger.git",
        "ssh://git@git.example/acme/x/../ledger",
        str(real),
        f"{real}/sub",
        f"{real}/../ledger",
        str(tmp_path / "alias"),
        f"file://{real}",
    )
    for repo in spellings:
        for who in ("otto", "ines"):
            reply = await house.ask(who, "POST", "/v1/runs", {"prompt": "p", "repo": repo})
            assert (reply.status_code, reply.json()["code"]) == (403, "denied"), (who, repo)
        beside = {"prompt": "p", "repo": OPEN, "also": [{"repo": repo}]}
        assert (await house.ask("otto", "POST", "/v1/runs", beside)).status_code == 403, repo
    assert (await house.ask("stan", "POST", "/v1/runs", {"prompt": "p", "repo": LEDGER})).status_code == 201
    assert (await house.ask("stan", "POST", "/v1/runs", {"prompt": "p", "repo": OPEN})).status_code == 403


async def test_a_run_on_several_repositories_needs_all_of_their_projects(house: House) -> None:
    house.people.set_project("pay", ("git.example/acme/pay",))
    both = (await house.run(OPEN, "both", LEDGER, "https://git.example/acme/pay")).run
    assert both not in await house.listed("otto") + await house.listed("max")
    house.people.set_member("pay", "max", "sees")
    assert both in await house.listed("max")
    assert await house.say("max", both) == (403, "denied")


async def test_the_overview_shows_what_the_list_shows(house: House) -> None:
    for who, seen in (("vera", 1), ("ines", 2)):
        async with house.served.socket("/v1/stream", house.tokens[who]) as socket:
            found: set[str] = set()
            while (message := json.loads(await socket.recv()))["type"] != "synced":
                found |= {message["run"]["id"]} if message["type"] == "run" else set()
            assert len(found) == seen
            await house.served.app.backbone.append_outside(house.closed.run, PromptReceived("x", "ada"))
            await house.served.app.backbone.append_outside(house.open.run, PromptReceived("x", "ada"))
            while (message := json.loads(await socket.recv())).get("run", {}).get("id") != house.open.run:
                assert seen == 2 or message["type"] != "run"


async def test_an_open_stream_ends_before_the_next_event_when_its_watcher_leaves_the_project(
    house: House,
) -> None:
    async with house.served.socket(f"/v1/runs/{house.closed.run}/stream", house.tokens["stan"]) as socket:
        while "RunClaimed" not in str(await socket.recv()):
            pass
        assert (
            await house.ask("max", "POST", "/v1/projects/ledger/members", {"who": "stan"})
        ).status_code == 200
        await socket.send('{"type": "say", "id": "m", "text": "still here"}')
        await house.served.app.backbone.append_outside(house.closed.run, PromptReceived("for members", "ada"))
        received = ""
        with pytest.raises(ConnectionClosed):
            while True:
                received += str(await socket.recv())
    assert "for members" not in received
    said = [event.body for event in await house.served.app.backbone.read(house.closed.run)]
    assert "still here" not in str(said)


async def test_who_administers_a_project_keeps_its_members_and_others_do_not_learn_of_it(
    house: House,
) -> None:
    async def change(who: str, member: str, level: str | None, project: str = "ledger") -> str:
        body = {"who": member, "level": level}
        reply = await house.ask(who, "POST", f"/v1/projects/{project}/members", body)
        return str(reply.json().get("code", "done"))

    assert await change("max", "vera", "sees") == "done"
    assert house.closed.run in await house.listed("vera")
    assert await change("anna", "vera", "administers") == "denied"
    assert await change("otto", "otto", "sees") == await change("otto", "otto", "sees", "none") == "denied"
    assert await change("max", "otto", "sees", "none") == "denied"
    assert await change("ada", "otto", "sees", "none") == "no_such_project"
    assert await change("max", "guest sh-1", "sees") == "bad_member"
    assert await change("max", "nobody", None) == "bad_member"
    names = {
        who: [one["name"] for one in (await house.ask(who, "GET", "/v1/projects")).json()] for who in ROLES
    }
    assert names["otto"] == [] and names["ada"] == names["max"] == names["vera"] == ["ledger"]
    assert ("max", {"project": "ledger", "member": "vera", "level": "sees"}) in await house.audit("MemberSet")


async def test_no_verb_reads_the_repository_of_a_project_for_others(house: House) -> None:
    for method, path, body in (
        ("GET", f"/v1/skills?repo={LEDGER}", None),
        ("GET", f"/v1/tools?repo={LEDGER}", None),
        ("GET", f"/v1/forge?repo={LEDGER}", None),
        ("POST", "/v1/environments/look", {"repo": LEDGER}),
        ("POST", "/v1/policy/layers", {"repo": LEDGER}),
        ("POST", "/v1/policy/explain", {"action": "bash:ls", "context": {"repo": LEDGER}}),
        ("POST", "/v1/verify", {"repo": LEDGER, "ref": "main"}),
        ("POST", "/v1/verify", {"repo": "", "ref": str(house.closed.run)}),
    ):
        reply = await house.ask("otto", method, path, body)
        assert reply.json()["code"] in ("denied", "no_such_run"), (path, reply.text)


async def test_a_damaged_file_of_projects_shows_runs_to_admins_only(house: House, settings: Settings) -> None:
    (settings.data_dir / "projects.json").write_text("{")
    for who in ("vera", "otto", "max"):
        reply = await house.ask(who, "GET", "/v1/runs")
        assert (reply.status_code, reply.json()["code"]) == (503, "projects_broken")
    assert len(await house.listed("ada")) == 2


# Links.


async def link(house: House, who: str = "stan", **wish: object) -> tuple[str, str]:
    """The id and the secret of a new link to the run of the project."""
    reply = await house.ask(who, "POST", f"/v1/runs/{house.closed.run}/shares", wish)
    assert reply.status_code == 201, reply.text
    return reply.json()["share"]["id"], reply.json()["secret"]


async def opened(house: House, secret: str) -> Page:
    page = Page(house.served)
    reply = await page.post("/v1/login/share", {"secret": secret})
    assert (reply.status_code, reply.json()) == (200, {"run": house.closed.run})
    assert "HttpOnly; SameSite=Strict" in reply.headers["set-cookie"]
    return page


async def test_a_link_lets_a_stranger_into_one_run_and_nowhere_else(house: House, settings: Settings) -> None:
    other = await house.run(LEDGER, "another secret")
    share, secret = await link(house)
    assert secret not in (settings.data_dir / "shares.json").read_text()
    page = await opened(house, secret)
    run = house.closed.run
    assert [row["id"] for row in (await page.client.get("/v1/runs")).json()] == [run]
    assert (await page.client.get(f"/v1/runs/{run}/events")).status_code == 200
    me = (await page.client.get("/v1/me")).json()
    assert (me["name"], me["known"]) == (f"guest {share}", False)
    for path in (
        f"/v1/runs/{other.run}",
        f"/v1/runs/{house.open.run}/events",
        f"/v1/runs/{house.open.run}/diff",
    ):
        assert (await page.client.get(path)).json()["code"] == "no_such_run", path
    for path in (
        "/v1/audit",
        "/v1/budget",
        "/v1/sandboxes",
        "/v1/pool",
        "/v1/triggers",
        "/metrics",
        "/v1/tokens",
    ):
        assert (await page.client.get(path)).status_code == 403, path
    for path, body in (
        (f"/v1/runs/{run}/say", {"text": "x"}),
        (f"/v1/runs/{run}/shares", {}),
        ("/v1/runs", {"prompt": "p", "repo": OPEN}),
        ("/v1/logins", {}),
        ("/v1/projects/ledger/members", {"who": me["name"], "level": "administers"}),
    ):
        assert (await page.post(path, body)).status_code in (403, 404), path
    assert [(who, one["share"]) for who, one in await house.audit("ShareOpened")] == [(me["name"], share)]


async def test_a_guest_who_steers_cannot_pass_on_fork_or_start_anything(house: House) -> None:
    _, secret = await link(house, level="steers")
    page, run = await opened(house, secret), house.closed.run
    assert (await page.post(f"/v1/runs/{run}/say", {"text": "from a guest"})).status_code == 200
    raised = [AskRaised("a1", 0, "bash: x", "x", 4e9)]
    await house.served.app.backbone.append(house.closed, raised)
    for path, body in (
        (f"/v1/runs/{run}/answer", {"ask": "a1", "answer": "allow"}),
        (f"/v1/runs/{run}/shares", {}),
        ("/v1/runs", {"prompt": "p", "repo": LEDGER}),
        ("/v1/runs", {"prompt": "p", "repo": OPEN, "forked_from": {"run": run, "seq": 2}}),
        ("/v1/policy/explain", {"action": "bash:ls"}),
    ):
        assert (await page.post(path, body)).status_code == 403, path
    assert (await page.post(f"/v1/runs/{run}/answer", {"ask": "a1", "answer": "deny"})).status_code == 200


async def test_a_link_is_never_worth_more_than_its_maker(house: House) -> None:
    run = house.closed.run
    for who, code in (("ines", "denied"), ("otto", "denied"), ("vera", "denied")):
        reply = await house.ask(who, "POST", f"/v1/runs/{run}/shares", {})
        assert reply.json()["code"] in (code, "no_such_run"), who
    for wish in ({"level": "approves"}, {"level": "administers"}):
        assert (await house.ask("max", "POST", f"/v1/runs/{run}/shares", wish)).status_code == 400
    for seconds in (0, -1, 91 * 86_400, 1e300):
        reply = await house.ask("max", "POST", f"/v1/runs/{run}/shares", {"seconds": seconds})
        assert reply.json()["code"] == "bad_share"
    _, secret = await link(house, "stan")
    page = await opened(house, secret)
    await house.ask("max", "POST", "/v1/projects/ledger/members", {"who": "stan"})
    assert (await page.client.get("/v1/runs")).status_code == 401
    assert (await Page(house.served).post("/v1/login/share", {"secret": secret})).json()[
        "code"
    ] == "bad_login"


async def test_an_ended_link_ends_its_browsers_and_their_streams(house: House) -> None:
    share, secret = await link(house)
    page, run = await opened(house, secret), house.closed.run
    headers = {"Cookie": page.cookie, "Origin": page.origin}
    from websockets.asyncio.client import connect

    address = f"ws://127.0.0.1:{house.served.port}/v1/runs/{run}/stream"
    async with connect(address, additional_headers=headers, proxy=None) as socket:
        await socket.recv()
        assert (await house.ask("anna", "DELETE", f"/v1/runs/{run}/shares/{share}")).json()[
            "code"
        ] == "denied"
        assert (await house.ask("stan", "DELETE", f"/v1/runs/{run}/shares/{share}")).status_code == 204
        with pytest.raises(ConnectionClosed):
            while True:
                await socket.recv()
    assert (await page.client.get(f"/v1/runs/{run}")).status_code == 401
    assert (await house.ask("stan", "GET", f"/v1/runs/{run}/shares")).json() == []


async def test_a_link_adds_its_run_to_a_login_that_is_there(house: House) -> None:
    _, secret = await link(house)
    page = await logged_in(house.served, house.tokens["vera"])
    assert house.closed.run not in (await page.client.get("/v1/runs")).text
    reply = await page.post("/v1/login/share", {"secret": secret})
    assert (reply.status_code, "set-cookie" in reply.headers) == (200, False)
    assert (await page.client.get("/v1/me")).json()["name"] == "vera"
    assert {row["id"] for row in (await page.client.get("/v1/runs")).json()} == {
        house.closed.run,
        house.open.run,
    }


async def test_guests_of_one_link_cannot_end_each_others_logins(house: House) -> None:
    _, secret = await link(house)
    first, second = await opened(house, secret), await opened(house, secret)
    [own] = (await first.client.get("/v1/logins")).json()
    other = (await second.client.get("/v1/me")).json()["login"]
    assert own["id"] != other
    headers = {"Origin": first.origin}
    assert (await first.client.delete(f"/v1/logins/{other}", headers=headers)).json()[
        "code"
    ] == "no_such_login"


def test_a_link_holds_until_its_end_and_a_run_has_a_bounded_number(tmp_path: Path) -> None:
    now = time.time()
    clock = [now]
    people = People(tmp_path, lambda: clock[0])
    made, secret = people.share(RunId("r-1"), "sees", "stan", 3_600)
    assert people.opened(secret.encode()) == made
    for wrong in (b"", secret[:-1].encode(), secret.encode() + b"x", made.sha256.encode()):
        with pytest.raises(UserError, match="ended or is wrong"):
            people.opened(wrong)
    clock[0] = now + 3_601
    with pytest.raises(UserError, match="ended or is wrong"):
        people.opened(secret.encode())
    clock[0] = now - 120
    assert people.shares() == ()
    clock[0] = now
    for _ in range(OF_RUN - 1):
        people.share(RunId("r-1"), "sees", "stan", 3_600)
    with pytest.raises(UserError, match="too many links"):
        people.share(RunId("r-1"), "sees", "stan", 3_600)
