"""Rules as people write them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.addresses import normal_host
from cloister.core.errors import UserError
from cloister.policy.api import ConnectAction, Layer, Rule
from cloister.policy.decide import decide
from cloister.policy.layers import layer


class Written(msgspec.Struct, frozen=True):
    action: str
    effect: str = "allow"


def test_a_layer_remembers_where_each_rule_is_written() -> None:
    entries = [Written("tool:bash"), Written("connect:example.com:443", "deny")]

    assert layer("host", entries, "config.toml", may_widen=True) == Layer(
        "host",
        (
            Rule("tool:bash", "allow", "config.toml, rule 1"),
            Rule("connect:example.com:443", "deny", "config.toml, rule 2"),
        ),
        may_widen=True,
    )


def test_rules_of_a_file_with_lines_are_named_by_their_line() -> None:
    entries = [Written("tool:bash"), Written("nonsense")]

    assert layer("host", entries[:1], "c", may_widen=True, at=[7]).rules[0].source == "c:7"
    with pytest.raises(UserError, match=r"^c:9: 'nonsense': "):
        layer("host", entries, "c", may_widen=True, at=[7, 9])


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("connect:EXAMPLE.com.", "connect:example.com"),
        ("connect:*.Example.COM:443", "connect:*.example.com:443"),
        ("connect:b\u00fccher.example", "connect:xn--bcher-kva.example"),
        ("connect:example\u3002com", "connect:example.com"),
        ("connect:[0:0:0::1]:80", "connect:[::1]:80"),
        ("connect:10.0.0.1:8080", "connect:10.0.0.1:8080"),
        ("connect:my_host", "connect:my_host"),
        ("tool:*:**/secret/*", "tool:*:**/secret/*"),
    ],
)
def test_hosts_get_one_spelling(written: str, normal: str) -> None:
    assert layer("x", [Written(written)], "f", may_widen=False).rules[0].action == normal


@pytest.mark.parametrize(
    "action",
    [
        "",
        "bsh",
        "tool",
        "tool:",
        "tool::x",
        "tool:ba*h",
        "tool:bash ",
        "tool:bash:",
        "tool:write:a?",
        "tool:write:[ab]",
        "tool:write:{a,b}",
        "tool:write:a\\b",
        "tool:write:a\nb",
        "Tool:bash",
        "connect:",
        "connect::443",
        "connect:*",
        "connect:*.",
        "connect:*.*.com",
        "connect:a.*.com",
        "connect:a*.com",
        "connect:*.10.0.0.1",
        "connect:*.[::1]",
        "connect:example.com:",
        "connect:example.com:0",
        "connect:example.com:65536",
        "connect:example.com:443evil",
        "connect:example.com:\u0664\u0664\u0663",
        "connect:example.com:443:1",
        "connect:::1",
        "connect:[::1",
        "connect:[10.0.0.1]",
        "connect:[fe80::1%eth0]",
        "connect:http://example.com",
        "connect:a@b",
        "connect:a b",
        "connect:a..b",
        "connect:-a.com",
        "connect:127.1",
        "connect:0x7f000001",
        "connect:2130706433",
        "connect:\u2460\u2461\u2462",
        "connect:" + "a" * 64,
        "connect:" + "a." * 127 + "com",
        "tool:write:" + "a" * 2_000,
    ],
)
def test_a_bad_rule_is_refused_when_it_is_read_and_named_by_its_number(action: str) -> None:
    with pytest.raises(UserError, match=r"^config\.toml, rule 2: ") as caught:
        layer("host", [Written("tool:bash"), Written(action)], "config.toml", may_widen=True)

    assert caught.value.code == "bad_policy"
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("effect", ["", "Allow", "permit", "allow ", "x" * 10_000])
def test_an_unknown_effect_is_refused(effect: str) -> None:
    with pytest.raises(UserError, match=r"^f, rule 1: the effect must be allow, deny or ask") as caught:
        layer("x", [Written("tool:bash", effect)], "f", may_widen=False)

    assert caught.value.code == "bad_policy"


@given(st.text(max_size=40) | st.text("ab.*:0123[]x", max_size=20).map("connect:".__add__))
def test_any_text_is_a_rule_or_a_clear_error(action: str) -> None:
    try:
        read = layer("x", [Written(action)], "f", may_widen=True)
    except UserError as error:
        assert error.code == "bad_policy"
    else:
        again = layer("x", [Written(read.rules[0].action)], "f", may_widen=True)
        assert again == read


@given(st.text("abc-_.019", min_size=1, max_size=20), st.integers(1, 65_535))
def test_a_rule_that_names_a_host_and_port_allows_exactly_that(host: str, port: int) -> None:
    try:
        normal = normal_host(host)
    except ValueError:
        return
    policy = (layer("x", [Written(f"connect:{host}:{port}")], "f", may_widen=True),)

    assert decide(policy, ConnectAction(normal, port)).exact
    assert decide(policy, ConnectAction("a." + normal, port)).effect == "deny"
