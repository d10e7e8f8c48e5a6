"""What rules can be about: connections and their requests, credentials, pushes, tiers, models, tools of servers."""

import pytest

from cloister.core.events import Effect
from cloister.policy.api import (
    Action,
    ConnectAction,
    CredentialAction,
    Layer,
    ModelAction,
    Pointed,
    PushAction,
    RawAction,
    RequestAction,
    Rule,
    TierAction,
    ToolAction,
)
from cloister.policy.decide import Decider
from cloister.policy.layers import BUILT_IN
from cloister.policy.pattern import read_pattern, spell


def deciding(*rules: tuple[str, Effect], only: tuple[str, ...] = (), **sets: tuple[str, ...]) -> Decider:
    written = tuple(Rule(action, effect) for action, effect in rules)
    listed = tuple(Pointed(action) for action in only)
    return Decider((BUILT_IN, Layer("host", written, may_widen=True, only=listed)), sets)


def get(path: str, host: str = "api.example.com", method: str = "GET", port: int = 443) -> RequestAction:
    return RequestAction(host, port, method, path)


def test_a_connection_that_is_allowed_may_carry_any_request() -> None:
    decider = deciding(("connect:api.example.com", "allow"))

    decision = decider.decide(ConnectAction("api.example.com", 443))
    assert (decision.effect, decision.inspect) == ("allow", False)
    assert decider.decide(get("/anything?x=1", method="DELETE")).effect == "allow"


def test_a_request_rule_opens_the_connection_for_a_proxy_that_inspects_it() -> None:
    decider = deciding(("request:GET api.example.com/repos/**", "allow"))

    decision = decider.decide(ConnectAction("api.example.com", 443))
    assert (decision.effect, decision.inspect) == ("allow", True)
    assert decider.decide(ConnectAction("api.example.com", 22)).effect == "deny"
    assert decider.decide(get("/repos/a/b")).effect == "allow"
    assert decider.decide(get("/repos/a/b", method="POST")).effect == "deny"
    assert decider.decide(get("/users")).effect == "deny"


def test_a_denied_request_makes_the_proxy_inspect_an_allowed_connection() -> None:
    decider = deciding(
        ("connect:*.example.com", "allow"),
        ("request:* api.example.com/admin/**", "deny"),
    )

    assert decider.decide(ConnectAction("api.example.com", 443)).inspect
    assert not decider.decide(ConnectAction("www.example.com", 443)).inspect
    assert decider.decide(get("/admin/x")).effect == "deny"
    assert decider.decide(get("/other")).effect == "allow"


@pytest.mark.parametrize(
    "path",
    [
        "/admin/keys",
        "/admin/keys?x",
        "//admin/keys",
        "/./admin/keys",
        "/repos/../admin/keys",
        "/repos/%2e%2e/admin/keys",
        "/repos/%2E%2e/admin/keys",
        "/repos/..%2fadmin/keys",
        "/repos/%252e%252e/admin/keys",
        "/%61dmin/keys",
        "/repos\\..\\admin/keys",
        "/repos/..;x=1/admin/keys",
        "/repos/%5c..%5c..%5cadmin%5ckeys",
        "admin/keys",
        "/admin/\r\nkeys",
        "http://api.example.com/admin/keys",
        "/%25252561dmin/keys",
    ],
)
def test_a_path_is_matched_in_every_way_a_server_may_read_it(path: str) -> None:
    denying = deciding(("connect:api.example.com", "allow"), ("request:* api.example.com/admin/**", "deny"))
    allowing = deciding(("request:* api.example.com/repos/**", "allow"))

    assert denying.decide(get(path)).effect == "deny"
    assert allowing.decide(get(path)).effect == "deny"


def test_an_escaped_slash_in_a_name_is_allowed() -> None:
    decider = deciding(("request:GET api.example.com/**", "allow"))

    assert decider.decide(get("/@scope%2fname")).effect == "allow"


@pytest.mark.parametrize("method", ["get", "GET ", "G\nET", "", "ＧＥＴ"])
def test_a_method_that_no_rule_can_match_is_denied(method: str) -> None:
    decider = deciding(("request:* api.example.com/**", "allow"))

    assert decider.decide(get("/", method=method)).effect == "deny"


def test_a_named_set_matches_its_hosts() -> None:
    decider = deciding(
        ("connect:@pypi", "allow"), pypi=("index.example.com", "mirror.corp.test:8080", "*.files.example.com")
    )

    assert decider.decide(ConnectAction("index.example.com", 443)).rule == "allow connect:@pypi"
    assert decider.decide(ConnectAction("a.files.example.com", 443)).effect == "allow"
    assert decider.decide(ConnectAction("mirror.corp.test", 8080)).exact
    assert not decider.decide(ConnectAction("index.example.com", 443)).exact
    assert decider.decide(ConnectAction("other.example.com", 443)).effect == "deny"


def test_a_set_without_hosts_opens_nothing() -> None:
    assert deciding(("connect:@npm", "allow")).decide(ConnectAction("a.example.com", 443)).effect == "deny"


def test_a_credential_needs_a_rule_that_names_it() -> None:
    action = CredentialAction("forge-token", "api.example.com", 443, "GET", "/")

    assert deciding().decide(action).effect == "deny"
    assert deciding(("credential:forge-token", "allow")).decide(action).effect == "allow"
    assert deciding(("credential:forge-*", "allow"), ("credential:*", "ask")).decide(action).effect == "ask"
    assert deciding(("credential:forge", "allow")).decide(action).effect == "deny"


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("refs/heads/cloister/fix-1", "allow"),
        ("refs/heads/main", "deny"),
        ("refs/heads/release/1", "ask"),
        ("refs/tags/v1", "deny"),
        ("refs/tags/cloister/x", "deny"),
        ("refs/heads/refs/heads/cloister/x", "deny"),
    ],
)
def test_pushes_are_matched_by_ref(ref: str, expected: str) -> None:
    decider = deciding(("push:release/*", "ask"))

    assert decider.decide(PushAction("https://git.example.com/x", ref)).effect == expected


def test_tiers_and_models_are_open_until_a_layer_limits_them() -> None:
    free = deciding()
    bound = deciding(only=("tier:gvisor", "tier:microvm", "model:acme:*"))

    assert free.decide(TierAction("container")).effect == "allow"
    assert free.decide(ModelAction("any:thing")).effect == "allow"
    assert bound.decide(TierAction("microvm")).effect == "allow"
    assert bound.decide(TierAction("container")).rule == "only tier:gvisor"
    assert bound.decide(ModelAction("acme:large")).effect == "allow"
    assert bound.decide(ModelAction("other:large")).effect == "deny"
    assert bound.decide(ToolAction("bash", "ls")).effect == "allow"


def test_only_closes_its_kinds_of_action_and_opens_nothing() -> None:
    hosts = deciding(("connect:*.example.com", "allow"), only=("connect:api.example.com",))
    tools = deciding(only=("read", "write:src/**"))

    assert hosts.decide(ConnectAction("api.example.com", 443)).effect == "allow"
    assert hosts.decide(ConnectAction("www.example.com", 443)).effect == "deny"
    assert deciding(only=("connect:a.test",)).decide(ConnectAction("a.test", 443)).effect == "deny"
    assert tools.decide(ToolAction("read", "/etc/passwd")).effect == "allow"
    assert tools.decide(ToolAction("bash", "ls")).effect == "deny"
    assert tools.decide(ToolAction("write", "src/a.py")).effect == "allow"
    assert tools.decide(ToolAction("write", "a.py")).effect == "deny"


def test_tools_of_mcp_servers_are_matched_as_mcp() -> None:
    decider = deciding(("mcp:jira.*", "allow"), ("mcp:jira.delete_*", "deny"))

    assert decider.decide(ToolAction("mcp:jira.get_issue", "{}")).effect == "allow"
    assert decider.decide(ToolAction("mcp:jira.delete_issue", "{}")).effect == "deny"
    assert decider.decide(ToolAction("mcp:jirax.get", "{}")).effect == "deny"
    assert decider.decide(ToolAction("jira.get_issue", "{}")).effect == "deny"


@pytest.mark.parametrize(
    ("short", "action"),
    [
        ("bash", ToolAction("bash", "ls")),
        ("write:.github/**", ToolAction("write", ".github/workflows/ci.yml")),
        ("read:/etc/*", ToolAction("read", "/etc/passwd")),
    ],
)
def test_tools_can_be_written_without_the_tool_prefix(short: str, action: Action) -> None:
    assert deciding().decide(action).effect == "allow"
    assert deciding((short, "deny")).decide(action).effect == "deny"


def test_raw_access_is_opened_by_host_only() -> None:
    assert (
        deciding(("connect:ssh.example.com:443", "allow")).decide(RawAction("ssh.example.com")).effect
        == "deny"
    )
    decider = deciding(("raw:*.example.com", "allow"), ("raw:no.example.com", "deny"))
    found = {host: decider.decide(RawAction(host)).effect for host in ("SSH.example.com.", "no.example.com")}
    assert found == {"SSH.example.com.": "allow", "no.example.com": "deny"}
    assert decider.decide(RawAction("example.com")).effect == "deny"
    assert spell(read_pattern("raw:[::1]")) == "raw:[::1]"


@pytest.mark.parametrize("text", ["raw:*", "raw:a.test:443", "raw:", "raw:a*b.test", "raw:a.test/x"])
def test_a_raw_rule_needs_a_host_and_no_port(text: str) -> None:
    with pytest.raises(ValueError, match=r"an action is|write raw:HOST|wildcard|host"):
        read_pattern(text)


def test_high_impact_requests_are_inspected_from_the_first_one() -> None:
    """Text from outside may come over the very connection on which they are then made."""
    high = Layer("org", high_impact=(Pointed("request:POST api.example.com/**"),))
    opened = Layer("host", (Rule("connect:api.example.com", "allow"),), may_widen=True)
    decider = Decider((high, opened))

    assert decider.decide(ConnectAction("api.example.com", 443)).inspect
    assert decider.decide(get("/x", method="POST")).effect == "allow"
    assert decider.decide(get("/x", method="POST"), untrusted=True).effect == "ask"
    assert decider.decide(get("/x"), untrusted=True).effect == "allow"
