"""What a policy says to an action."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.events import Effect
from cloister.policy.api import Action, Commands, ConnectAction, Decision, Layer, Policy, Rule, ToolAction
from cloister.policy.decide import NO_RULE, decide
from cloister.policy.layers import BUILT_IN


def host_layer(*rules: tuple[str, Effect], may_widen: bool = True) -> Layer:
    return Layer("host", tuple(Rule(action, effect) for action, effect in rules), may_widen)


def bash(*commands: str, unclear: str | None = None) -> ToolAction:
    """A command line of which a parser found `commands`."""
    return ToolAction("bash", "; ".join(commands), Commands(tuple((one,) for one in commands), unclear))


def effect(policy: Policy, action: Action) -> str:
    return decide(policy, action).effect


def test_an_action_without_a_rule_is_denied() -> None:
    assert decide((), ToolAction("bash", "ls")) == Decision("deny", NO_RULE)
    assert decide((BUILT_IN,), ConnectAction("example.com", 443)) == Decision("deny", NO_RULE)


@pytest.mark.parametrize("tool", ["bash", "read", "write", "edit", "search", "finish"])
def test_the_built_in_tools_are_allowed(tool: str) -> None:
    assert decide((BUILT_IN,), ToolAction(tool, "a.py")) == Decision("allow", f"allow tool:{tool} (built-in)")


@pytest.mark.parametrize("tool", ["Bash", "bash ", "bash\n", "bаsh", "", "*", "tool"])
def test_a_tool_is_matched_by_its_exact_name_only(tool: str) -> None:
    assert effect((BUILT_IN,), ToolAction(tool, "x")) == "deny"


@pytest.mark.parametrize(
    "path",
    [
        ".git",
        ".git/config",
        "/work/.git/hooks/pre-commit",
        "//work//.git//config",
        "./.git/config",
        "src/../.git/config",
        "src/../../work/.git/HEAD",
        "/etc/../work/./.git/x/",
        "../../../work/.git/config",
    ],
)
@pytest.mark.parametrize("tool", ["write", "edit"])
def test_writing_git_files_is_denied_in_every_spelling(tool: str, path: str) -> None:
    decision = decide((BUILT_IN,), ToolAction(tool, path))

    assert decision == Decision("deny", f"deny tool:{tool}:.git/** (built-in)")


@pytest.mark.parametrize("path", [".gitignore", ".github/ci.yml", "src/.gitkeep", "a/.git/../b", "x.git/y"])
def test_files_with_similar_names_can_be_written(path: str) -> None:
    assert effect((BUILT_IN,), ToolAction("write", path)) == "allow"


def test_reading_git_files_is_allowed() -> None:
    assert effect((BUILT_IN,), ToolAction("read", ".git/config")) == "allow"


def test_a_path_longer_than_path_max_is_denied() -> None:
    assert effect((BUILT_IN,), ToolAction("write", "a/" * 1_000_000)) == "deny"


def test_a_deny_of_any_layer_wins_over_an_allow() -> None:
    policy = (
        host_layer(("connect:*.example.com", "allow"), ("connect:api.example.com:443", "allow")),
        host_layer(("connect:api.example.com", "deny"), may_widen=False),
    )

    assert decide(policy, ConnectAction("api.example.com", 443)) == Decision(
        "deny", "deny connect:api.example.com"
    )
    assert effect(policy, ConnectAction("www.example.com", 443)) == "allow"


def test_ask_wins_over_allow_and_deny_wins_over_ask() -> None:
    policy = (BUILT_IN, host_layer(("tool:bash:git push*", "ask"), ("tool:*:*rm -rf*", "deny")))

    assert effect(policy, bash("git push origin")) == "ask"
    assert effect(policy, bash("git push", "rm -rf /")) == "deny"
    assert effect(policy, bash("git status")) == "allow"


def test_a_line_without_commands_is_allowed_only_by_a_glob_for_the_whole_line() -> None:
    comment = ToolAction("bash", "# git status", Commands())

    assert effect((host_layer(("bash:*git*", "allow")),), comment) == "allow"
    assert effect((host_layer(("bash:*git", "allow")),), comment) == "deny"
    assert effect((host_layer(("bash:git *", "allow")),), comment) == "deny"


def test_an_allow_of_a_layer_that_may_not_widen_is_ignored() -> None:
    policy = (BUILT_IN, host_layer(("connect:example.com", "allow"), may_widen=False))

    assert decide(policy, ConnectAction("example.com", 443)) == Decision("deny", NO_RULE)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("example.com", "allow"),
        ("EXAMPLE.com", "allow"),
        ("example.com.", "allow"),
        ("a.example.com", "deny"),
        ("evilexample.com", "deny"),
        ("example.com.evil.org", "deny"),
        ("example.com..", "deny"),
        ("example.com\0.evil.org", "deny"),
        ("example.org", "deny"),
        ("", "deny"),
    ],
)
def test_a_host_is_matched_label_by_label(host: str, expected: str) -> None:
    assert effect((host_layer(("connect:example.com", "allow")),), ConnectAction(host, 443)) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("a.example.com", "allow"),
        ("b.a.example.com", "allow"),
        ("example.com", "deny"),
        ("evilexample.com", "deny"),
        (".example.com", "deny"),
        ("evil\0.example.com", "deny"),
        ("evil@.example.com", "deny"),
        ("evil/.example.com", "deny"),
    ],
)
def test_a_wildcard_means_names_below_the_suffix_and_not_the_suffix(host: str, expected: str) -> None:
    assert effect((host_layer(("connect:*.example.com", "allow")),), ConnectAction(host, 443)) == expected


def test_an_allow_without_a_port_is_for_the_web_and_a_deny_for_every_port() -> None:
    allow = (host_layer(("connect:example.com", "allow")),)
    deny = (host_layer(("connect:example.com", "deny"), ("connect:example.com:22", "allow")),)

    assert [effect(allow, ConnectAction("example.com", port)) for port in (80, 443, 22)] == [
        "allow",
        "allow",
        "deny",
    ]
    assert effect(deny, ConnectAction("example.com", 22)) == "deny"


def test_only_a_rule_that_names_host_and_port_is_exact() -> None:
    policy = (
        host_layer(
            ("connect:*.corp.test:443", "allow"),
            ("connect:git.corp.test", "allow"),
            ("connect:git.corp.test:443", "allow"),
        ),
    )

    assert decide(policy, ConnectAction("git.corp.test", 443)) == Decision(
        "allow", "allow connect:git.corp.test:443", exact=True
    )
    assert not decide(policy, ConnectAction("git.corp.test", 80)).exact
    assert not decide(policy, ConnectAction("wiki.corp.test", 443)).exact


def test_an_address_is_allowed_only_if_a_rule_names_it() -> None:
    policy = (host_layer(("connect:127.0.0.1:8080", "allow"), ("connect:[::1]:8080", "allow")),)

    assert decide(policy, ConnectAction("127.0.0.1", 8080)).exact
    assert decide(policy, ConnectAction("[0:0::1]", 8080)).exact
    for spelling in ("127.1", "2130706433", "0x7f.1", "017700000001", "localhost", "::ffff:127.0.0.1"):
        assert effect(policy, ConnectAction(spelling, 8080)) == "deny"


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a/b.py", False),
        ("src/**", "src/a/b.py", True),
        ("src/**/b.py", "src/b.py", True),
        ("src/**/b.py", "src/x/y/b.py", True),
        ("**/.env", ".env", True),
        ("**/.env", "/home/agent/.env", True),
        ("**", "/etc/passwd", True),
        ("/etc/**", "../etc/passwd", True),
        ("a/**/b/**/c", "a/b/x/b/c", True),
        ("a/**/b/**/c", "a/x/c", False),
        ("a*b*c", "abxbc", True),
        ("a*b*c", "ab", False),
        ("ab*b", "ab", False),
    ],
)
def test_globs_over_paths(glob: str, path: str, matches: bool) -> None:
    policy = (host_layer((f"tool:write:{glob}", "allow")),)

    assert (effect(policy, ToolAction("write", path)) == "allow") == matches


def test_a_malformed_rule_can_only_narrow() -> None:
    for broken in ("", "tool:", "connect:a.*.b", "nonsense", "tool:bash:[x"):
        assert effect((host_layer((broken, "allow")),), ToolAction("bash", "ls")) == "deny"
        assert effect((BUILT_IN, host_layer((broken, "deny"))), ToolAction("bash", "ls")) == "deny"
        assert effect((BUILT_IN, host_layer((broken, "ask"))), ToolAction("bash", "ls")) == "ask"


def test_a_pattern_full_of_wildcards_takes_linear_time() -> None:
    policy = (BUILT_IN, host_layer(("tool:bash:" + "*a" * 400 + "b", "deny")))

    assert effect(policy, bash("a" * 1_000_000)) == "allow"


HOSTS = st.sampled_from(["example.com", "a.example.com", "b.a.example.com", "example.org", "127.0.0.1"])
ACTIONS = st.builds(
    ToolAction,
    st.sampled_from(["bash", "read", "write", "other"]),
    st.sampled_from(["ls", ".git/config", "a/../.git", "src/a.py", "/etc/passwd"]),
) | st.builds(ConnectAction, HOSTS | st.text(max_size=8), st.sampled_from([22, 80, 443]))
RULES = st.builds(
    Rule,
    st.sampled_from(
        [
            "tool:*",
            "tool:bash",
            "tool:bash:l*",
            "tool:write:.git/**",
            "tool:read:/etc/**",
            "connect:example.com",
            "connect:*.example.com",
            "connect:a.example.com:443",
            "connect:127.0.0.1:80",
            "broken",
        ]
    ),
    st.sampled_from(["allow", "deny", "ask"]),
)
LAYERS = st.builds(Layer, st.just("x"), st.lists(RULES, max_size=5).map(tuple), st.booleans())
POLICIES = st.lists(LAYERS, max_size=4).map(tuple)
STRENGTH = {"allow": 0, "ask": 1, "deny": 2}


@given(POLICIES, ACTIONS, RULES, st.booleans(), st.integers(0, 4))
def test_a_rule_that_denies_or_asks_never_opens_anything(
    policy: Policy, action: Action, rule: Rule, may_widen: bool, at: int
) -> None:
    if rule.effect == "allow":
        return
    narrower = (*policy[:at], Layer("new", (rule,), may_widen), *policy[at:])
    before, after = decide(policy, action), decide(narrower, action)

    if before.effect != "allow":
        assert after.effect != "allow"
    if rule.effect == "deny":
        assert STRENGTH[after.effect] >= STRENGTH[before.effect]


@given(POLICIES, ACTIONS, LAYERS, st.integers(0, 4))
def test_a_layer_that_may_not_widen_never_opens_anything(
    policy: Policy, action: Action, layer: Layer, at: int
) -> None:
    narrow = Layer(layer.name, layer.rules, may_widen=False)
    after = decide((*policy[:at], narrow, *policy[at:]), action)

    if decide(policy, action).effect != "allow":
        assert after.effect != "allow"


@given(POLICIES, ACTIONS, st.data())
def test_the_order_of_layers_and_rules_does_not_matter(
    policy: Policy, action: Action, data: st.DataObject
) -> None:
    other = tuple(
        Layer(layer.name, tuple(data.draw(st.permutations(layer.rules))), layer.may_widen)
        for layer in data.draw(st.permutations(policy))
    )
    one, two = decide(policy, action), decide(other, action)

    assert (one.effect, one.exact) == (two.effect, two.exact)
