"""Named sets: what this machine's package clients and their indexes say, without a name of our own."""

import stat
from pathlib import Path

import msgspec
import pytest

from cloister.core.addresses import without_userinfo
from cloister.core.ids import SandboxId
from cloister.egress.factory import STORE, Doorway, Judge
from cloister.egress.packages import Meaning, SetFinder, derive, links
from cloister.egress.rules import DoorEvent
from cloister.policy.api import ConnectAction, Layer, Rule, Sets

pytestmark = pytest.mark.anyio


def test_the_files_of_an_index_are_found_where_its_pages_point() -> None:
    page = "<a href=\"../../files/a.whl#sha256=1\">a</a> <A HREF='https://files.corp.test:8443/b.whl'>b</A>"
    assert links("pypi", page, "https://mirror.corp.test/simple/pip/") == [
        "https://mirror.corp.test/simple/pip/",
        "https://mirror.corp.test/files/a.whl",
        "https://files.corp.test:8443/b.whl",
    ]
    npm = '{"name": "x", "dist": {"tarball": "https://blobs.corp.test/x.tgz"}}'
    assert links("npm", npm, "https://npm.corp.test/x")[1] == "https://blobs.corp.test/x.tgz"
    crates = '{"dl": "https://dl.corp.test/{crate}", "api": null}'
    assert links("crates", crates, "https://index.corp.test/config.json")[1] == "https://dl.corp.test/{crate}"


@pytest.mark.parametrize("page", ["", "[]", "<html>", '{"dist": 3}'])
def test_malformed_index_page_raises_a_readable_error(page: str) -> None:
    with pytest.raises(ValueError):
        links("npm", page, "https://npm.corp.test/x")


def test_an_address_loses_its_user_and_password() -> None:
    assert without_userinfo("https://me:se@cret@mirror.corp.test/simple") == "https://mirror.corp.test/simple"


async def test_a_set_without_its_client_means_nothing_and_says_so() -> None:
    found = await derive("nothing")
    assert found.hosts == () and found.problem == "There is no set nothing."


async def test_what_was_found_is_kept_for_a_day_and_a_failure_for_minutes(tmp_path: Path) -> None:
    now = 1_000_000.0
    kept = {"debian": Meaning("debian", ("kept.test:80",), found_at=now - 80_000)}
    (tmp_path / "sets.json").write_bytes(_encode(kept))
    assert (await SetFinder(tmp_path, lambda: now).meaning("debian")).hosts == ("kept.test:80",)
    later = await SetFinder(tmp_path, lambda: now + 10_000).meaning("debian")
    assert later.hosts != ("kept.test:80",)
    assert stat.S_IMODE((tmp_path / "sets.json").stat().st_mode) == 0o600
    failed = {"debian": Meaning("debian", ("kept.test:80",), problem="It failed.", found_at=now - 400)}
    (tmp_path / "sets.json").write_bytes(_encode(failed))
    assert (await SetFinder(tmp_path, lambda: now).meaning("debian")).problem != "It failed."


async def test_a_file_that_is_broken_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "sets.json").write_text("{")
    assert (await SetFinder(tmp_path).meaning("debian")).name == "debian"


async def test_a_rule_for_a_set_opens_its_hosts_and_ports_and_nothing_before_it_was_looked_up() -> None:
    asked: list[frozenset[str]] = []

    async def find(names: frozenset[str]) -> tuple[Sets, dict[str, str]]:
        asked.append(names)
        return {"pypi": ("mirror.corp.test:8443",)}, {"PIP_INDEX_URL": "https://mirror.corp.test:8443/simple"}

    judge = Judge((Layer("host", (Rule("connect:@pypi", "allow"),), may_widen=True),), find)
    action = ConnectAction("mirror.corp.test", 8443)
    assert judge.decide(action).effect == "deny"
    await judge.prepare()
    decision = judge.decide(action)
    assert (decision.effect, decision.exact) == ("allow", True), "a mirror may have a private address"
    assert judge.decide(ConnectAction("mirror.corp.test", 443)).effect == "deny"
    assert judge.env == {"PIP_INDEX_URL": "https://mirror.corp.test:8443/simple"}
    assert asked == [frozenset({"pypi"})]


async def test_policy_without_sets_asks_no_package_client() -> None:
    async def find(names: frozenset[str]) -> tuple[Sets, dict[str, str]]:
        raise AssertionError

    judge = Judge((Layer("host", (Rule("connect:example.com", "allow"),), may_widen=True),), find)
    await judge.prepare()


async def test_npm_trusts_what_node_trusts_and_is_given_no_file_to_parse_for_each_connection() -> None:
    async def record(sandbox: SandboxId, body: DoorEvent) -> None:
        raise AssertionError

    rules = (Rule("connect:example.com", "allow"),)
    env = await Doorway().outfit((Layer("host", rules, may_widen=True),), record).env()
    assert env["NODE_EXTRA_CA_CERTS"] == STORE
    assert [name for name in env if "cafile" in name.lower()] == []


def _encode(kept: dict[str, Meaning]) -> bytes:
    return msgspec.json.encode(kept)
