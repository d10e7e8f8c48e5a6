import fcntl
import json
import os
from pathlib import Path

import pytest

from cloister.cli.client.discover import living, lock_held
from cloister.cli.client.http import failure
from cloister.core.errors import CloisterError, HostError


def hold(data_dir: Path) -> int:
    descriptor = os.open(data_dir / "server.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def announce(data_dir: Path, text: str) -> None:
    (data_dir / "server.json").write_text(text)


def test_a_file_left_by_a_dead_server_is_no_server(tmp_path: Path) -> None:
    assert not lock_held(tmp_path)
    announce(tmp_path, json.dumps({"pid": 1, "port": 7717, "url": "http://127.0.0.1:7717"}))
    assert living(tmp_path) is None
    os.close(hold(tmp_path))
    assert not lock_held(tmp_path)
    assert living(tmp_path) is None


def test_a_server_lives_while_it_holds_the_lock_and_listens_once_it_says_so(tmp_path: Path) -> None:
    descriptor = hold(tmp_path)
    assert lock_held(tmp_path)
    assert living(tmp_path) is None
    for torn in ("", "{", "[]", '{"pid": "1"}'):
        announce(tmp_path, torn)
        assert living(tmp_path) is None
    announce(tmp_path, json.dumps({"pid": 12, "port": 7717, "url": "http://127.0.0.1:7717"}))
    os.pwrite(descriptor, b"13", 0)
    assert living(tmp_path) is None, "what a dead server announced is not trusted"
    os.pwrite(descriptor, b"12", 0)
    place = living(tmp_path)
    assert place is not None
    assert (place.pid, place.port, place.url) == (12, 7717, "http://127.0.0.1:7717")
    with pytest.raises(HostError) as caught:
        place.token()
    assert caught.value.code == "no_access"
    os.close(descriptor)
    assert living(tmp_path) is None


@pytest.mark.parametrize(
    ("status", "exit_code"), [(400, 2), (404, 2), (409, 2), (401, 3), (503, 3), (502, 4), (410, 5), (500, 70)]
)
def test_a_refusal_of_the_server_is_the_error_it_was_there(status: int, exit_code: int) -> None:
    error: CloisterError = failure(status, b'{"code": "odd", "message": "Do this."}')
    assert (error.exit_code, error.message) == (exit_code, "Do this.")
    assert failure(status, b"<html>").message == f"The server refused with status {status}."
