import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cloister.core.errors import HostError
from cloister.core.ids import OwnerId, new_owner_id
from cloister.sandbox.liveness import Owners

HOLDER = """
import sys
from pathlib import Path
from cloister.core.ids import OwnerId
from cloister.sandbox.liveness import Owners

with Owners(Path(sys.argv[1])).hold(OwnerId(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_an_owner_lives_exactly_while_it_is_held_even_as_seen_from_the_same_process(tmp_path: Path) -> None:
    owners, owner = Owners(tmp_path / "owners"), new_owner_id()
    assert not owners.lives(owner)
    with owners.hold(owner):
        assert owners.lives(owner)
        assert owners.lives(owner), "asking does not release the lock"
        assert Owners(tmp_path / "owners").lives(owner)
    assert not owners.lives(owner)
    assert list((tmp_path / "owners").iterdir()) == []


def test_an_owner_that_was_killed_is_dead_and_its_file_is_removed(tmp_path: Path) -> None:
    owners, owner = Owners(tmp_path), new_owner_id()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert owners.lives(owner)
        assert owners.remove_dead() == ()
        holder.kill()
        holder.wait(10)
    assert not owners.lives(owner)
    assert owners.remove_dead() == (owner,)
    assert list(tmp_path.iterdir()) == []


def test_one_owner_cannot_be_held_twice(tmp_path: Path) -> None:
    owners, owner = Owners(tmp_path, patience_seconds=0.01), new_owner_id()
    with owners.hold(owner):
        with pytest.raises(HostError) as refused, owners.hold(owner):
            pass
        assert refused.value.code == "owner_taken"
        assert owners.lives(owner), "the refused holder leaves the real one alone"


def test_holding_survives_others_who_ask_and_clean_up_all_the_time(tmp_path: Path) -> None:
    owners, stop = Owners(tmp_path), threading.Event()

    def meddle() -> None:
        while not stop.is_set():
            owners.remove_dead()

    meddlers = [threading.Thread(target=meddle) for _ in range(2)]
    for thread in meddlers:
        thread.start()
    try:
        for _ in range(200):
            owner = new_owner_id()
            with owners.hold(owner):
                assert owners.lives(owner)
    finally:
        stop.set()
        for thread in meddlers:
            thread.join()


def test_a_name_that_is_no_id_never_becomes_a_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not an owner id"):
        Owners(tmp_path).lives(OwnerId("../../etc/passwd"))
