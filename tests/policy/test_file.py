"""Policy files as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import UserError
from cloister.policy.api import Cap, ConnectAction, Pointed, Rule
from cloister.policy.file import FILE_BYTES, Expectation, read_policy
from cloister.policy.layers import capped

FILE = """\
delegate = ["connect:*.Example.com"]
only = [
  "tier:gvisor",
  "tier:microvm",
]
high_impact = ["push:*"]

[[rule]]
action = "bash:git push*"
effect = "ask"
approver = "admin"

[[rule]]
effect = "allow"
action = "connect:@pypi"

[limits]
steps = 30
cpus = 1.5

[approve]
operator = ["bash"]

[[test]]
action = "connect:evil.example"
expect = "deny"
untrusted = true
"""


def test_every_part_of_a_file_remembers_its_line() -> None:
    read = read_policy("organisation", FILE.encode(), "policy.toml")
    layer = read.layer

    assert layer.rules == (
        Rule("tool:bash:git push*", "ask", "policy.toml:9", "admin"),
        Rule("connect:@pypi", "allow", "policy.toml:15"),
    )
    assert layer.delegate == (Pointed("connect:*.example.com", "policy.toml:1"),)
    assert layer.only == (Pointed("tier:gvisor", "policy.toml:3"), Pointed("tier:microvm", "policy.toml:4"))
    assert layer.high_impact == (Pointed("push:*", "policy.toml:6"),)
    assert layer.approve == (Pointed("tool:bash", "policy.toml:22"),)
    assert layer.caps == (Cap("steps", 30, "policy.toml:18"), Cap("cpus", 1.5, "policy.toml:19"))
    assert read.tests == (
        Expectation(
            "connect:evil.example", ConnectAction("evil.example", 443), "deny", True, "policy.toml:25"
        ),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "p:1: there is no key 'x' here."),
        ("\n[[rule]]\naction = 'bash'\neffect = 'deny'\nefect = 1", "p:5: there is no key 'efect' here."),
        ("[[rule]]\naction = 'bash'\neffect = 'permit'", "p:3: rule.effect: "),
        ("[[rule]]\n\neffect = 'deny'", "p:1: rule: "),
        ("[[rule]]\neffect = 'deny'\naction = 'bsh'", "p:3: 'bsh': an action is "),
        (
            "[[rule]]\neffect = 'allow'\naction = 'connect:*'",
            "p:3: 'connect:*': an allow rule must name its hosts",
        ),
        ("[[rule]]\neffect='deny'\naction='bash'\napprover='admin'", "p:4: approver is only valid with"),
        ("[limits]\n\nsteps = 0", "p:3: limits.steps: "),
        ("[limits]\nstep = 5", "p:2: there is no key 'step' here."),
        ("[limits]\nseconds = inf\ncpus = 'x'", "p:3: limits.cpus: "),
        ("only = [\n'bash',\n'nonsense',\n]", "p:3: 'nonsense': "),
        ("delegate = [\n'bash',\n7]", "p:3: delegate: "),
        ("[[test]]\nexpect = 'deny'\naction = 'connect:*.x.test'", "p:3: 'connect:*.x.test': name one host"),
        ("rule = 5", "p:1: rule: "),
        ("[[rule]]\naction = ", "p:2: it is not valid TOML: "),
        ("a = 1\na = 2", "p:2: it is not valid TOML: "),
        ("\n\n[", "p:3: it is not valid TOML: "),
        ("x = [1,\n\n", "p:3: it is not valid TOML: "),
        ("\0", "p:1: it is not valid TOML: "),
    ],
)
def test_an_error_names_file_and_line(text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        read_policy("repository", text.encode(), "p")

    assert caught.value.code == "bad_policy"
    assert caught.value.message.startswith(says)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "data", [b"\xff", b"a" * (FILE_BYTES + 1), b"x = " + b"[" * 5_000, b"x = " + b"{a=" * 5_000]
)
def test_a_file_that_is_not_text_or_too_large_is_refused(data: bytes) -> None:
    with pytest.raises(UserError, match=r"^p:1: ") as caught:
        read_policy("repository", data, "p")

    assert caught.value.code == "bad_policy"


@given(st.text(max_size=60) | st.text("[]ruleacton=\"' \n.{}", max_size=60))
def test_any_text_is_a_policy_or_a_clear_error(text: str) -> None:
    try:
        read_policy("repository", text.encode("utf-8", errors="replace"), "p")
    except UserError as error:
        assert error.code == "bad_policy"
        assert error.message.startswith("p:")


def test_a_repository_passes_delegation_on_and_other_layers_delegate_by_list() -> None:
    assert read_policy("repository", b"", "p").layer.delegate is None
    assert read_policy("organisation", b"", "p").layer.delegate == ()
    assert read_policy("project", b"", "p").layer.delegate == ()
    assert read_policy("repository", b"delegate = []", "p").layer.delegate == ()


def test_the_smallest_limit_applies_and_names_its_source() -> None:
    policy = tuple(
        read_policy("organisation", f"[limits]\nsteps = {steps}".encode(), name).layer
        for name, steps in (("a", 30), ("b", 10), ("c", 20))
    )

    assert capped(policy, {"steps": 60, "tokens": 5}) == (
        {"steps": 10, "tokens": 5},
        ("steps: 10 instead of 60 (limits.steps, b:2)",),
    )
    assert capped(policy, {"steps": 10}) == ({"steps": 10}, ())
