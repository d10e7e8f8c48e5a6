"""What the pages of the machine and of the models are told by the server."""

from pathlib import Path

import pytest
from tests.server.conftest import Served, serve_app

from cloister.app.settings import read_settings
from cloister.app.tokens import Tokens
from cloister.log.audit.entry import AuditEntry

pytestmark = pytest.mark.anyio

SCRIPT = """[[reply]]
say = "ready"
"""
CONFIG = """
[models]
code = ["openai:gpt-5", "script:{script}"]
review = "openai:gpt-5"

[models.entry."script:{script}"]
input_price = 2.0
output_price = 8.0
window = 4096

[[policy]]
action = "model:script:/forbidden.toml"
effect = "deny"
"""


async def entries(served: Served, kind: str) -> list[AuditEntry]:
    return [one for one in await served.app.backbone.audit(limit=1_000) if one.kind == kind]


async def test_roles_name_their_models_with_prices_and_what_is_missing_and_a_trial_is_audited(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    data = tmp_path / "data"
    data.mkdir()
    (data / "config.toml").write_text(CONFIG.format(script=script))
    async with serve_app(read_settings({"USER": "tester"}, data)) as served:
        client, name = served.client, f"script:{script}"
        roles = {one["role"]: one for one in (await client.get("/v1/models/roles")).json()}
        first, second = roles["code"]["models"]
        assert (first["name"], first["input_price"], first["output_price"]) == (name, 2.0, 8.0)
        assert (first["window"], first["problem"]) == (4_096, "")
        assert second["name"] == "openai:gpt-5" and "OPENAI_API_KEY" in second["problem"]
        assert roles["review"]["models"] == [] and "OPENAI_API_KEY" in roles["review"]["problem"]

        tried = (await client.post("/v1/models/try", json={"name": name})).json()
        assert (tried["name"], tried["ok"], tried["text"]) == (name, True, "ready")
        [entry] = await entries(served, "ModelTried")
        assert name in entry.detail
        for wrong, code in (
            ("openai:gpt-5", "no_key"),
            ("script:/forbidden.toml", "denied"),
            ("x:y", "unknown_model"),
        ):
            reply = await client.post("/v1/models/try", json={"name": wrong})
            assert reply.json()["code"] == code, wrong
        assert len(await entries(served, "ModelTried")) == 1

        viewer = {"Authorization": f"Bearer {Tokens(data).add('vera', 'viewer', 'tester')}"}
        assert (await client.get("/v1/models/roles", headers=viewer)).status_code == 200
        for method, path in (("POST", "/v1/models/try"), ("GET", "/v1/doctor")):
            reply = await client.request(method, path, json={"name": name}, headers=viewer)
            assert (reply.status_code, reply.json()["code"]) == (403, "denied")


async def test_the_doctor_of_the_server_says_what_the_command_says(served: Served) -> None:
    found = (await served.client.get("/v1/doctor", timeout=120)).json()
    named = {one["name"]: one for one in found["findings"]}
    assert {"system", "git", "data", "log", "disk", "server", "model"} <= named.keys()
    assert named["server"] == {
        "name": "server",
        "ok": True,
        "found": "it answers",
        "fix": None,
        "needed": False,
    }
    assert found["ready"] == all(one["ok"] or not one["needed"] for one in found["findings"])
