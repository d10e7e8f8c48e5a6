"""The name, the limits, the environment and the mount point of a sandbox."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import HostError, UserError
from cloister.core.ids import new_owner_id, new_sandbox_id
from cloister.core.requests import Quota
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.local.names import SLOTS, Name, parse_name
from cloister.sandbox.local.spec import PROXY_NAMES, check_spec, environment, mount_point


@given(st.sampled_from(SLOTS))
def test_a_name_says_whose_it_is(slot: int) -> None:
    name = Name(new_sandbox_id(), new_owner_id(), slot)
    assert parse_name(str(name)) == name


@given(st.text())
def test_a_foreign_name_is_not_parsed(text: str) -> None:
    parsed = parse_name(text)
    assert parsed is None or str(parsed) == text


@pytest.mark.parametrize(
    "spec",
    [
        SandboxSpec(quota=Quota(cpus=0)),
        SandboxSpec(quota=Quota(cpus=float("nan"))),
        SandboxSpec(quota=Quota(memory_bytes=1024)),
        SandboxSpec(quota=Quota(processes=0)),
        SandboxSpec(quota=Quota(open_files=1)),
        SandboxSpec(ttl_seconds=0),
        SandboxSpec(ttl_seconds=1e9),
        SandboxSpec(ttl_seconds=float("nan")),
        SandboxSpec(env={"A=B": "c"}),
        SandboxSpec(env={"A": "b\0c"}),
    ],
)
def test_an_impossible_spec_is_refused_in_one_sentence(spec: SandboxSpec) -> None:
    with pytest.raises(UserError) as refused:
        check_spec(spec)
    assert refused.value.code == "bad_sandbox"
    assert refused.value.message.endswith(".")


def test_the_environment_points_at_the_only_way_out() -> None:
    check_spec(SandboxSpec(env={"LANG": "de_DE.UTF-8"}))
    env = environment(SandboxSpec(env={"LANG": "de_DE.UTF-8"}))
    proxies = {env[name] for name in PROXY_NAMES}
    assert proxies == {"http://127.0.0.1:3128"}
    assert env["NO_PROXY"] == env["no_proxy"] == "localhost,127.0.0.1,::1"
    assert env["LANG"] == "de_DE.UTF-8", "what was asked for wins"
    assert env["HOME"] == "/home/agent"


def test_text_is_utf_8_unless_a_language_is_set() -> None:
    plain = environment(SandboxSpec())
    assert plain["LC_CTYPE"] == "C.UTF-8"
    assert "LANG" not in plain, "every program would open a dozen files for it"
    for name in ("LANG", "LC_ALL"):
        asked = environment(SandboxSpec(env={name: "de_DE.UTF-8"}))
        from_image = environment(SandboxSpec(), {name: "de_DE.UTF-8"})
        assert "LC_CTYPE" not in {**asked, **from_image}, "it would stand over that"


def test_the_mount_point_never_hides_a_needed_path() -> None:
    everywhere = {"/srv", "/mnt", "/media", "/opt"}
    assert mount_point([Path("/var/lib/cloister")], everywhere) == "/srv"
    assert mount_point([Path("/srv/cloister")], everywhere) == "/mnt"
    assert mount_point([Path("/srv/cloister"), Path("/mnt/crun")], everywhere) == "/media"
    with pytest.raises(HostError) as refused:
        mount_point([Path("/srv/x")], {"/srv"})
    assert refused.value.code == "no_mount_point"
