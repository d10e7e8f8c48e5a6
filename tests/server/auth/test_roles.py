"""What the holders of named tokens may do, asked of a real server."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import httpx
import pytest
from tests.server.conftest import Serve, Served
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cloister.app.settings import Settings
from cloister.app.tokens import Caller, Tokens
from cloister.app.verbs.local import LocalVerbs
from cloister.core.events import AskAnswered, AskRaised, PromptReceived, RunFinished
from cloister.core.ids import RunId
from cloister.core.requests import Role
from cloister.log.api import Fence
from cloister.server.app import openapi_document
from cloister.server.auth import REVOKED

pytestmark = pytest.mark.anyio


@dataclass
class House:
    """A server with a run, and a token for each role."""

    served: Served
    tokens: Tokens
    secrets: dict[Role, str]
    fence: Fence

    @property
    def run(self) -> RunId:
        return self.fence.run

    async def ask(self, role: Role, method: str, path: str, **more: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[role]}"}
        return await self.served.client.request(method, path, headers=headers, **more)  # type: ignore[arg-type]

    def socket(self, role: Role, path: str) -> AbstractAsyncContextManager[ClientConnection]:
        headers = {"Authorization": f"Bearer {self.secrets[role]}"}
        return connect(f"ws://127.0.0.1:{self.served.port}{path}", additional_headers=headers, proxy=None)

    async def events(self) -> list[object]:
        return [event.body for event in await self.served.app.backbone.read(self.run)]


@pytest.fixture
async def house(serving: Serve, settings: Settings) -> AsyncIterator[House]:
    async with serving() as served:
        tokens = Tokens(settings.data_dir)
        secrets: dict[Role, str] = {
            "viewer": tokens.add("vera", "viewer", "tester"),
            "operator": tokens.add("otto", "operator", "tester"),
            "admin": tokens.add("ada", "admin", "tester"),
        }
        yield House(served, tokens, secrets, await served.claimed_run())


def routes(wanted: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Every HTTP route there is whose method is `wanted`, with ids filled in."""
    return [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in openapi_document()["paths"].items()
        for method in methods
        # Of a webhook the signature is checked, and everyone may log in and out.
        if wanted(method) and "hooks" not in path and "/log" not in path
    ]


OPERATED = (
    {"/v1/runs", "/v1/attachments", "/v1/verify", "/v1/triggers/name/run"}
    | {"/v1/environments/plan", "/v1/environments/look"}
    | {
        f"/v1/runs/run/{verb}"
        for verb in (
            "say",
            "stop",
            "interrupt",
            "pause",
            "questions",
            "resume",
            "answer",
            "fork",
            "rewind",
            "model",
            "applied",
            "pull-request",
            "rebase",
            "shares",
        )
    }
    | {"/v1/runs/run/shares/share"}
    | {f"/v1/policy/{verb}" for verb in ("layers", "explain", "test")}
)


async def test_a_viewer_can_change_nothing_and_an_operator_only_runs(house: House) -> None:
    changing = routes(lambda method: method != "get")
    assert len(changing) > 12
    for method, path in changing:
        for spelling in (path, f"/{path}", path.replace("/v1/", "/v1//"), f"{path}/", f"/v1/runs/..{path}"):
            reply = await house.ask("viewer", method, spelling, json={})
            assert (reply.status_code, reply.json()["code"]) == (403, "denied"), (method, spelling)
        reply = await house.ask("operator", method, path, json={})
        assert (reply.status_code == 403) == (path not in OPERATED), (method, path)
    assert len(await house.events()) == 2


async def test_a_viewer_sees_runs_and_not_the_inside_of_sandboxes(house: House) -> None:
    for path in (
        "/v1/runs",
        f"/v1/runs/{house.run}",
        f"/v1/runs/{house.run}/events",
        "/v1/pool",
        "/v1/sandboxes",
    ):
        assert (await house.ask("viewer", "GET", path)).status_code == 200
    for path in ("/v1/sandboxes/x/files?path=/etc/passwd", "/v1/sandboxes/x", "/v1//sandboxes/x/files"):
        assert (await house.ask("viewer", "GET", path)).status_code == 403
    name = f"8000-s-aaaaaaaaaaaa.localhost:{house.served.port}"
    for role in ("viewer", "operator"):
        headers = {"Authorization": f"Bearer {house.secrets[role]}", "Host": name}
        assert (await house.served.client.get("/", headers=headers)).status_code in (403, 421)


async def test_the_log_of_a_build_may_show_values_and_is_not_for_viewers(
    house: House, settings: Settings
) -> None:
    templates = settings.data_dir / "templates"
    templates.mkdir(exist_ok=True)
    (templates / "tool.toml").write_text('kind = "oci"\nimage = "x"\nenv = { "A" = "value" }\n')
    (templates / "tool.log").write_text("A=value\n")
    assert "value" not in (await house.ask("viewer", "GET", "/v1/templates/tool")).text
    assert (await house.ask("viewer", "GET", "/v1/templates/tool/log")).status_code == 403
    for role in ("operator", "admin"):
        assert (await house.ask(role, "GET", "/v1/templates/tool/log")).text == "A=value\n"


@pytest.mark.parametrize("path", ["process", "dial/80", "files/watch", "commands/x/attach"])
async def test_websockets_into_sandboxes_need_an_admin(house: House, path: str) -> None:
    for role in ("viewer", "operator"):
        with pytest.raises(InvalidStatus) as caught:
            async with house.socket(role, f"/v1/sandboxes/x/{path}"):
                pass
        assert caught.value.response.status_code == 403


async def test_a_viewer_watches_a_run_but_cannot_steer_it(house: House) -> None:
    async with house.socket("viewer", f"/v1/runs/{house.run}/stream") as socket:
        while "RunClaimed" not in str(await socket.recv()):
            pass
        for message in ({"type": "say", "text": "x"}, {"type": "stop"}, {"type": "approve", "ask": "a"}):
            await socket.send(json.dumps(message | {"id": "m"}))
            while (answer := json.loads(await socket.recv()))["type"] == "watchers":
                pass
            assert answer["error"]["code"] == "denied"
    assert len(await house.events()) == 2


async def test_actions_are_recorded_under_the_tokens_name(house: House) -> None:
    await house.ask("operator", "POST", f"/v1/runs/{house.run}/say", json={"text": "hello"})
    async with house.socket("admin", f"/v1/runs/{house.run}/stream") as socket:
        await socket.send('{"type": "say", "id": "m", "text": "hi"}')
        while "hi" not in str(await socket.recv()):
            pass
    said = [(body.text, body.who) for body in await house.events() if isinstance(body, PromptReceived)]
    assert said == [("hello", "otto"), ("hi", "ada")]


async def test_refused_calls_are_audited_under_the_callers_name(house: House) -> None:
    await house.ask("viewer", "POST", f"/v1/runs/{house.run}/stop", json={})
    await house.ask("operator", "DELETE", "/v1/snapshots/x")
    await house.served.client.post("/v1/runs", headers={"Authorization": "Bearer wrong"})
    entries = await LocalVerbs(house.served.app, Caller("ada", "admin")).audit.page()
    calls = [(entry.who, json.loads(entry.detail)["status"]) for entry in entries if entry.kind == "ApiCall"]
    assert calls == [("vera", 403), ("otto", 403)]
    assert [entry.who for entry in entries if entry.kind == "LoginRefused"] == [""]


async def test_a_removed_run_records_the_admins_name(house: House) -> None:
    await house.served.app.backbone.append(house.fence, [RunFinished("failed", "x")])
    removed = await house.ask("admin", "DELETE", f"/v1/runs/{house.run}")
    assert (removed.status_code, removed.json()["who"]) == (200, "ada")


async def test_a_viewer_reads_the_receipt_in_both_forms(house: House) -> None:
    for form in ("receipt", "receipt/markdown"):
        assert (await house.ask("viewer", "GET", f"/v1/runs/{house.run}/{form}")).status_code == 200


async def test_an_approval_needs_the_role_that_the_rule_names(house: House) -> None:
    asks = [
        AskRaised("a1", 0, "bash: x", "x", 4e9, rule="ask bash (p:1)"),
        AskRaised("a2", 0, "bash: y", "y", 4e9, rule="ask bash (p:2)", approver="admin"),
        AskRaised("a3", 0, "bash: z", "z", 4e9, approver="admin"),
    ]
    await house.served.app.backbone.append(house.fence, asks)

    async def answer(role: Role, ask: str, verdict: str) -> int:
        body = {"ask": ask, "answer": verdict}
        return (await house.ask(role, "POST", f"/v1/runs/{house.run}/answer", json=body)).status_code

    assert await answer("viewer", "a1", "deny") == 403
    assert await answer("operator", "a1", "allow") == 200
    assert await answer("operator", "a2", "allow") == 403
    async with house.socket("operator", f"/v1/runs/{house.run}/stream") as socket:
        await socket.send('{"type": "approve", "id": "m", "ask": "a2"}')
        while "error" not in (reply := json.loads(await socket.recv())):
            pass
        assert reply["error"] == {
            "code": "denied",
            "message": "Only the role admin may allow this: ask bash (p:2).",
        }
    assert await answer("operator", "a3", "deny") == 200
    assert await answer("admin", "a2", "allow") == 200
    answers = [body for body in await house.events() if isinstance(body, AskAnswered)]
    assert answers == [
        AskAnswered("a1", "allow", "otto", "operator"),
        AskAnswered("a3", "deny", "otto", "operator"),
        AskAnswered("a2", "allow", "ada", "admin"),
    ]


async def test_an_operator_opens_for_a_run_only_what_a_policy_delegates(
    house: House, settings: Settings
) -> None:
    wishes = [
        {"allow_hosts": ["example.com"]},
        {"rules": [{"action": "connect:example.com", "effect": "allow"}]},
        {"rules": [{"action": "connect:example.com", "effect": "ask"}]},
    ]
    for wish in wishes:
        reply = await house.ask(
            "operator", "POST", "/v1/runs", json={"prompt": "p", "repo": "https://host.example/a.git", **wish}
        )
        assert (reply.status_code, reply.json()["code"]) == (403, "denied")
    harmless = {
        "prompt": "p",
        "repo": "https://host.example/a.git",
        "rules": [{"action": "bash:rm *", "effect": "deny"}],
    }
    assert (await house.ask("operator", "POST", "/v1/runs", json=harmless)).status_code == 201
    admin = {"prompt": "p", "repo": "https://host.example/a.git", **wishes[0]}
    assert (await house.ask("admin", "POST", "/v1/runs", json=admin)).status_code == 201


async def test_a_removed_token_is_refused_also_on_an_open_connection(house: House) -> None:
    async with house.socket("operator", f"/v1/runs/{house.run}/stream") as socket:
        await socket.recv()
        await socket.recv()
        house.tokens.remove("otto")
        assert (await house.ask("operator", "GET", "/v1/runs")).status_code == 401
        await socket.send('{"type": "say", "id": "m", "text": "from otto"}')
        await house.served.app.backbone.append(house.fence, [PromptReceived("not for otto", "ada")])
        received = ""
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                received += str(await socket.recv())
        assert closed.value.rcvd is not None and closed.value.rcvd.code == REVOKED
        assert "not for otto" not in received
        assert "from otto" not in str(await house.events())


async def test_with_a_damaged_token_file_only_the_first_token_works(house: House, settings: Settings) -> None:
    (settings.data_dir / "tokens.json").write_text("{")
    reply = await house.ask("admin", "GET", "/v1/runs")
    assert (reply.status_code, reply.json()["code"]) == (503, "tokens_broken")
    assert (await house.served.client.get("/v1/runs")).status_code == 200
