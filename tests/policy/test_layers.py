"""Who may open what: each layer narrows freely and widens only within what was delegated to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.test_decide import STRENGTH, bash

from cloister.core.events import Effect
from cloister.policy.api import (
    Action,
    ConnectAction,
    Layer,
    ModelAction,
    Pointed,
    Policy,
    PushAction,
    RequestAction,
    Rule,
    TierAction,
    ToolAction,
)
from cloister.policy.decide import Decider, decide
from cloister.policy.file import Author, read_policy
from cloister.policy.layers import BUILT_IN, least

API = ConnectAction("api.example.com", 443)


def written(author: Author, text: str) -> Layer:
    return read_policy(author, text.encode(), f"{author}.toml").layer


def allowing(*actions: str) -> str:
    return "".join(f'[[rule]]\naction = "{action}"\neffect = "allow"\n' for action in actions)


def run_layer(*actions: str) -> Layer:
    return Layer("run", tuple(Rule(action, "allow", "the request") for action in actions), may_widen=True)


def test_a_repository_cannot_open_what_no_layer_delegated() -> None:
    repository = written("repository", allowing("connect:api.example.com"))

    assert decide((BUILT_IN, repository), API).effect == "deny"
    assert decide((BUILT_IN, written("organisation", ""), repository), API).effect == "deny"


def test_a_repository_opens_what_was_delegated() -> None:
    above = written("organisation", 'delegate = ["connect:*.example.com"]')
    repository = written("repository", allowing("connect:api.example.com", "connect:evil.test"))
    policy = (BUILT_IN, above, repository)

    assert decide(policy, API).rule == "allow connect:api.example.com (repository.toml:2)"
    assert decide(policy, ConnectAction("evil.test", 443)).effect == "deny"
    assert decide(policy, ConnectAction("www.example.com", 443)).effect == "deny"


def test_delegation_is_an_intersection_along_the_layers() -> None:
    organisation = written("organisation", 'delegate = ["connect:*.example.com"]')
    project = written("project", 'delegate = ["connect:api.example.com", "connect:evil.test"]')
    repository = written(
        "repository", allowing("connect:api.example.com", "connect:www.example.com", "connect:evil.test")
    )
    policy = (BUILT_IN, organisation, project, repository)

    assert decide(policy, API).effect == "allow"
    assert decide(policy, ConnectAction("www.example.com", 443)).effect == "deny"
    assert decide(policy, ConnectAction("evil.test", 443)).effect == "deny"


def test_a_run_is_bound_by_what_the_organisation_delegates_and_free_without_one() -> None:
    run = run_layer("connect:api.example.com")

    assert decide((BUILT_IN, run), API).effect == "allow"
    assert decide((BUILT_IN, written("repository", ""), run), API).effect == "allow"
    assert decide((BUILT_IN, written("organisation", ""), run), API).effect == "deny"
    given_ = written("organisation", 'delegate = ["connect:*"]')
    assert decide((BUILT_IN, given_, run), API).effect == "allow"
    assert decide((BUILT_IN, given_, written("repository", "delegate = []"), run), API).effect == "deny"


def test_a_private_address_is_opened_only_if_every_layer_names_it() -> None:
    run = run_layer("connect:db.corp.test:5432")
    action = ConnectAction("db.corp.test", 5432)
    wide = written("organisation", 'delegate = ["connect:*.corp.test:5432"]')
    exact = written("organisation", 'delegate = ["connect:db.corp.test:5432"]')

    assert decide((BUILT_IN, run), action).exact
    assert decide((BUILT_IN, wide, run), action).effect == "allow"
    assert not decide((BUILT_IN, wide, run), action).exact
    assert decide((BUILT_IN, exact, run), action).exact


def test_delegated_requests_open_a_connection_only_for_a_proxy_that_inspects_it() -> None:
    above = written("organisation", 'delegate = ["request:GET api.example.com/public/**"]')
    policy = (BUILT_IN, above, run_layer("connect:api.example.com"))

    assert decide(policy, API).inspect
    assert decide(policy, RequestAction("api.example.com", 443, "GET", "/public/x")).effect == "allow"
    assert decide(policy, RequestAction("api.example.com", 443, "GET", "/private")).effect == "deny"


def test_an_ask_cannot_open_what_is_denied() -> None:
    asking = '[[rule]]\naction = "connect:evil.test"\neffect = "ask"'
    evil = ConnectAction("evil.test", 443)

    assert decide((BUILT_IN, written("repository", asking)), evil).effect == "deny"
    assert decide((BUILT_IN, written("organisation", asking)), evil).effect == "ask"
    above = written("organisation", 'delegate = ["connect:evil.test"]')
    assert decide((BUILT_IN, above, written("repository", asking)), evil).effect == "ask"


def test_any_layer_may_deny() -> None:
    above = written("organisation", allowing("connect:api.example.com"))
    below = written("repository", '[[rule]]\naction = "connect:*"\neffect = "deny"')

    assert decide((BUILT_IN, above, below), API).rule == "deny connect:* (repository.toml:2)"


def test_after_untrusted_text_high_impact_needs_approval() -> None:
    above = written("organisation", 'high_impact = ["push:*", "bash:git push*"]')
    decider = Decider((BUILT_IN, above))
    push = PushAction("x", "refs/heads/cloister/x")

    assert decider.decide(push).effect == "allow"
    decision = decider.decide(push, untrusted=True)
    assert decision.effect == "ask"
    assert decision.rule == "ask push:* (organisation.toml:1): high impact after untrusted text"
    assert decider.decide(bash("git push x"), untrusted=True).effect == "ask"
    assert decider.decide(bash("git status"), untrusted=True).effect == "allow"
    assert decider.decide(PushAction("x", "refs/heads/main"), untrusted=True).effect == "deny"


def test_the_approver_is_the_strictest_of_all_layers() -> None:
    asks = '[[rule]]\naction = "bash"\neffect = "ask"\n[[rule]]\naction = "bash:rm *"\neffect = "ask"\napprover = "admin"'
    plain = Decider((BUILT_IN, written("organisation", asks)))
    bound = Decider((BUILT_IN, written("organisation", asks + '\n[approve]\noperator = ["bash:git *"]')))

    assert plain.decide(bash("ls")).approver == "operator"
    assert plain.decide(bash("rm x")).approver == "admin"
    assert plain.decide(bash("ls", "rm x")).approver == "admin"
    assert plain.decide(bash("ls", unclear="eval")).approver == "admin"
    assert bound.decide(bash("git push")).approver == "operator"
    assert bound.decide(bash("git push", "ls")).approver == "admin"


PATTERNS = st.sampled_from(
    [
        "bash",
        "bash:git *",
        "tool:*",
        "write:src/**",
        "mcp:jira.*",
        "connect:*",
        "connect:*.example.com",
        "connect:api.example.com",
        "connect:api.example.com:22",
        "request:GET api.example.com/a/**",
        "request:* *.example.com/**",
        "push:*",
        "push:cloister/*",
        "model:acme:*",
        "tier:gvisor",
        "broken",
    ]
)
POINTED = st.lists(PATTERNS.map(Pointed), max_size=3).map(tuple)
RULES = st.lists(st.builds(Rule, PATTERNS, st.sampled_from(["allow", "deny", "ask"])), max_size=4).map(tuple)
LAYERS = st.builds(
    Layer,
    st.just("x"),
    RULES,
    may_widen=st.booleans(),
    needs_delegation=st.booleans(),
    delegate=st.none() | POINTED,
    only=POINTED,
    high_impact=POINTED,
    approve=st.none() | POINTED,
)
POLICIES = st.lists(LAYERS, max_size=3).map(lambda layers: (BUILT_IN, *layers))
ACTIONS: st.SearchStrategy[Action] = st.sampled_from(
    [
        bash("git push"),
        bash("ls", "git status"),
        bash("ls", unclear="eval"),
        ToolAction("bash", "not parsed"),
        ToolAction("write", "src/a"),
        ToolAction("mcp:jira.get", "{}"),
        API,
        ConnectAction("api.example.com", 22),
        ConnectAction("evil.test", 443),
        RequestAction("api.example.com", 443, "GET", "/a/b"),
        RequestAction("api.example.com", 443, "POST", "/a/../b"),
        PushAction("r", "refs/heads/cloister/x"),
        PushAction("r", "refs/heads/main"),
        ModelAction("acme:x"),
        TierAction("container"),
    ]
)


@given(POLICIES, LAYERS, ACTIONS, st.booleans(), st.integers(1, 4))
def test_a_layer_without_permission_to_widen_only_narrows(
    policy: Policy, layer: Layer, action: Action, untrusted: bool, at: int
) -> None:
    narrow = Layer(
        layer.name,
        layer.rules,
        delegate=layer.delegate,
        only=layer.only,
        high_impact=layer.high_impact,
        approve=layer.approve,
    )
    # A layer that delegates can give a repository below it something: it is not narrow in that sense.
    above = tuple(one for one in policy if not one.needs_delegation)
    before = Decider(above).decide(action, untrusted=untrusted)
    after = Decider((*above[:at], narrow, *above[at:])).decide(action, untrusted=untrusted)

    assert STRENGTH[after.effect] >= STRENGTH[before.effect]
    assert before.exact or not after.exact
    if before.effect == after.effect == "allow":
        assert after.inspect or not before.inspect
    if before.effect == after.effect == "ask":
        assert (after.approver == "admin") or (before.approver == "operator")


@given(POLICIES, LAYERS, ACTIONS)
def test_a_layer_at_the_end_opens_only_what_every_layer_above_delegated(
    policy: Policy, layer: Layer, action: Action
) -> None:
    before, after = decide(policy, action), decide((*policy, layer), action)

    if STRENGTH[after.effect] < STRENGTH[before.effect]:
        assert layer.may_widen
        for above in policy:
            if above.delegate is not None:
                opened = Layer("all", tuple(Rule(p.action, "allow") for p in above.delegate), may_widen=True)
                assert decide((opened,), action).effect == "allow"


@given(POLICIES, ACTIONS, PATTERNS, st.sampled_from(["deny", "ask"]), st.data())
def test_an_added_deny_or_ask_in_a_layer_that_may_not_widen_never_opens(
    policy: Policy, action: Action, pattern: str, effect: Effect, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(policy) - 1))
    layer = policy[at]
    if effect == "ask" and layer.may_widen:
        return
    more = Layer(
        layer.name,
        (*layer.rules, Rule(pattern, effect)),
        layer.may_widen,
        layer.needs_delegation,
        layer.delegate,
        layer.only,
        layer.high_impact,
        layer.approve,
    )
    before, after = decide(policy, action), decide((*policy[:at], more, *policy[at + 1 :]), action)

    assert STRENGTH[after.effect] >= STRENGTH[before.effect]


@pytest.mark.parametrize("order", [(30, 10), (10, 30)])
def test_a_lower_layer_cannot_raise_a_limit(order: tuple[int, int]) -> None:
    policy = tuple(written("project", f"[limits]\nsteps = {most}") for most in order)

    assert least(policy)["steps"].most == 10
