import errno
from pathlib import Path

import pytest
from tests.core.system.own_process import own_process

from cloister.cli.failures import explain
from cloister.core.errors import Bug, HostError, OutsideError, SandboxLost, UserError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("x", "Fix it."), 2),
        (HostError("x", "Fix it."), 3),
        (OutsideError("x", "Fix it."), 4),
        (SandboxLost("Fix it."), 5),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [HostError("x", "Fix it.")])]), 3),
    ],
)
def test_every_kind_of_error_has_its_exit_code_and_one_sentence(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(error, []) == code
    assert capsys.readouterr() == ("", "cloister: Fix it.\n")


def test_an_interrupt_inside_a_group_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(BaseExceptionGroup("tasks", [KeyboardInterrupt(), ValueError("x")]), []) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [ValueError("odd"), Bug("odd"), ExceptionGroup("t", [ValueError("odd")])])
def test_a_bug_is_one_sentence_and_its_traceback_is_kept(
    error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(error, ["--data-dir", str(tmp_path), "ps"]) == 70
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.endswith(f": odd); the traceback is in {tmp_path}/server.log.\n")
    assert shown.err.count("\n") == 1
    assert "odd" in (tmp_path / "server.log").read_text()


def test_a_person_who_asks_for_the_traceback_gets_it(tmp_path: Path) -> None:
    program = "import sys; from cloister.cli.failures import explain; sys.exit(explain(ValueError('odd'), sys.argv[1:]))"
    told = own_process(program, f"--data-dir={tmp_path}", env={"CLOISTER_DEBUG": "1"})
    assert told.returncode == 70
    assert "ValueError: odd\n" in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_error_never_brings_terminal_controls(capsys: pytest.CaptureFixture[str]) -> None:
    explain(UserError("x", "bad \x1b[2Jname"), [])
    assert capsys.readouterr().err == "cloister: bad name\n"


def test_a_full_disk_is_no_bug_wherever_it_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/data/server.json")
    assert explain(ExceptionGroup("tasks", [ExceptionGroup("more", [full])]), []) == 3
    assert capsys.readouterr().err == (
        "cloister: There is no space left on the disk for /data/server.json: free some, and try again.\n"
    )
