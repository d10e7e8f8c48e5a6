"""The token of one sandbox, tried against everything else."""

from pathlib import Path

import anyio
import httpx
import pytest
from tests.server.conftest import Serve
from websockets.exceptions import InvalidStatus

from cloister.app.settings import Settings, read_settings
from cloister.app.tokens import Tokens
from cloister.app.verbs.api import FileVerbs, SandboxVerbs
from cloister.app.verbs.declare import is_inside
from cloister.server.app import HTTP_ROUTES, SOCKET_ROUTES
from cloister.server.auth import OPEN_PATHS

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    return read_settings({"USER": "tester"}, data_dir)


async def test_it_reaches_the_inside_of_its_sandbox_and_nothing_else(serving: Serve) -> None:
    async with serving() as served:
        own, other = [(await served.client.post("/v1/sandboxes")).json()["id"] for _ in range(2)]
        made = await served.client.post(f"/v1/sandboxes/{own}/token")
        assert made.status_code == 201 and made.json()["sandbox"] == own
        token = made.json()["token"]
        async with httpx.AsyncClient(
            base_url=served.client.base_url, headers={"Authorization": f"Bearer {token}"}, trust_env=False
        ) as inside:
            for sandbox, status in ((own, 200), (other, 403)):
                at = f"/v1/sandboxes/{sandbox}"
                assert (await inside.get(at)).status_code == status
                assert (await inside.get(f"{at}/metrics")).status_code == status
                ran = await inside.post(f"{at}/exec", json={"command": "echo hello > /work/x"})
                assert ran.status_code == status
                assert (await inside.get(f"{at}/files", params={"path": "x"})).status_code == status
                assert (await inside.get(f"{at}/ports/8000/")).status_code == (404 if status == 200 else 403)
                named = {"Host": f"8000-{sandbox}.localhost"}
                assert (await inside.get("/", headers=named)).status_code == (404 if status == 200 else 403)
            for spelling in (f"{own}/../{other}", f"{own}%2F..%2F{other}", f"./{other}", other.upper()):
                assert (await inside.get(f"/v1/sandboxes/{spelling}")).status_code in (403, 404)
            await _tries_every_other_route(inside, own)
            with pytest.raises(InvalidStatus):
                async with served.socket(f"/v1/sandboxes/{other}/process", token):
                    raise AssertionError("it was let in")
            assert (await served.client.delete(f"/v1/sandboxes/{own}")).status_code == 204
            gone = await inside.get(f"/v1/sandboxes/{own}")
            assert (gone.status_code, gone.json()["code"]) == (401, "unauthorized")


async def _tries_every_other_route(inside: httpx.AsyncClient, own: str) -> None:
    """Only routes of verbs that are marked for it are open, and those stay in their sandbox."""
    tried = 0
    for route in (*HTTP_ROUTES, *SOCKET_ROUTES):
        if route.opt.get("inside") or route.opt.get("open") or OPEN_PATHS & set(route.paths):
            continue
        for path in route.paths:
            at = path.replace("{sandbox:str}", own).replace("{", "").replace("}", "").replace(":str", "")
            for method in getattr(route, "http_methods", ()):
                if method not in ("OPTIONS", "HEAD"):
                    reply = await inside.request(method, at, json={} if method != "GET" else None)
                    assert (reply.status_code, reply.json()["code"]) == (403, "denied"), (method, at)
                    tried += 1
    assert tried > 50


async def test_it_ends_with_the_token_of_its_maker(serving: Serve, data_dir: Path) -> None:
    async with serving() as served:
        tokens = Tokens(data_dir)
        maker = tokens.add("robot", "admin", "tester")
        sandbox = (await served.client.post("/v1/sandboxes")).json()["id"]
        at = f"/v1/sandboxes/{sandbox}"
        made = await served.client.post(f"{at}/token", headers={"Authorization": f"Bearer {maker}"})
        bearer = {"Authorization": f"Bearer {made.json()['token']}"}
        assert (await served.client.get(at, headers=bearer)).status_code == 200
        async with served.socket(f"{at}/process", made.json()["token"]) as socket:
            tokens.remove("robot")
            with anyio.fail_after(30):
                await socket.wait_closed()
        assert (await served.client.get(at, headers=bearer)).status_code == 401
        audit = await served.app.backbone.audit(0, 10_000)
        assert [entry.who for entry in audit if entry.kind == "SandboxTokenMade"] == ["robot"]
        assert made.json()["token"] not in "".join(str(entry.detail) for entry in audit)


def test_only_verbs_of_one_sandbox_are_marked_for_it() -> None:
    marked = {
        name
        for group in (SandboxVerbs, FileVerbs)
        for name, verb in vars(group).items()
        if callable(verb) and is_inside(verb)
    }
    assert not marked & {"create", "destroy", "fork", "change", "token", "take", "resolve", "pool"}
