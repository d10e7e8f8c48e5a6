"""Named tokens in their file."""

import os
import stat
import time
from pathlib import Path

import pytest

from cloister.app.tokens import Tokens
from cloister.core.errors import HostError, UserError


def test_a_token_is_found_by_its_secret_and_by_nothing_else(tmp_path: Path) -> None:
    secret = Tokens(tmp_path).add("ci", "operator", "root")
    found = Tokens(tmp_path).find(secret.encode())

    assert found is not None
    assert (found.name, found.role) == ("ci", "operator")
    for wrong in (b"", secret[:-1].encode(), found.sha256.encode(), secret.encode() + b"\n"):
        assert Tokens(tmp_path).find(wrong) is None


def test_the_file_holds_no_secret_and_is_its_owners_alone(tmp_path: Path) -> None:
    secret = Tokens(tmp_path).add("ci", "viewer", "root")
    path = tmp_path / "tokens.json"

    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(found.name for found in tmp_path.iterdir()) == ["tokens.json", "tokens.lock"]


def test_changes_by_others_are_seen_without_a_restart(tmp_path: Path) -> None:
    server, command = Tokens(tmp_path), Tokens(tmp_path)
    assert server.all() == ()
    secret = command.add("ci", "viewer", "root").encode()
    assert server.find(secret) is not None
    command.remove("ci")
    assert server.find(secret) is None


def test_a_change_within_a_tick_of_the_files_clock_is_seen_too(tmp_path: Path) -> None:
    server, path = Tokens(tmp_path), tmp_path / "tokens.json"
    secret = Tokens(tmp_path).add("ci", "viewer", "root").encode()
    tick = time.time_ns() + 10**12
    os.utime(path, ns=(tick, tick))
    assert server.find(secret) is not None
    path.write_bytes(path.read_bytes().replace(b'"ci"', b'"xy"'))
    os.utime(path, ns=(tick, tick))
    assert [token.name for token in server.all()] == ["xy"]


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "-a", "a" * 41, "deadline", "root", "a\n", "é"])
def test_a_name_that_could_be_taken_for_someone_else_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        Tokens(tmp_path).add(name, "viewer", "root")
    assert caught.value.code == "bad_name"


def test_a_name_has_one_token(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    tokens.add("ci", "viewer", "root")
    with pytest.raises(UserError, match="already"):
        tokens.add("ci", "admin", "root")
    with pytest.raises(UserError, match="There is no token 'other'"):
        tokens.remove("other")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tokens": [{"name": "x", "role": "king"}]}'])
def test_a_damaged_file_is_an_error_and_not_an_empty_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens.json").write_text(text)
    with pytest.raises(HostError) as caught:
        Tokens(tmp_path).find(b"x")
    assert caught.value.code == "tokens_broken"
