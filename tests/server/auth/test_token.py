from pathlib import Path

import pytest

from cloister.core.errors import HostError
from cloister.server.auth import load_token


def test_the_first_start_makes_a_token_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "data" / "token"
    token = load_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == token + "\n"
    assert len(token) >= 32
    assert [file.name for file in path.parent.iterdir()] == ["token"]


def test_later_starts_keep_the_token(tmp_path: Path) -> None:
    assert load_token(tmp_path / "token") == load_token(tmp_path / "token")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_token_readable_by_others_is_refused_with_a_fix(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    load_token(path)
    path.chmod(mode)
    with pytest.raises(HostError) as caught:
        load_token(path)
    assert caught.value.code == "token_exposed"
    assert f"chmod 600 {path}" in caught.value.message


@pytest.mark.parametrize("text", ["", "short\n", "with space in the middle of a long text\n", "x" * 1000])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(HostError) as caught:
        load_token(path)
    assert caught.value.code == "token_broken"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    load_token(tmp_path / "real")
    (tmp_path / "token").symlink_to(tmp_path / "real")
    with pytest.raises(HostError) as caught:
        load_token(tmp_path / "token")
    assert caught.value.code == "token_failed"


def test_a_data_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError) as caught:
        load_token(tmp_path / "file" / "data" / "token")
    assert caught.value.code == "no_data_dir"
