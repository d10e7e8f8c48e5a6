import msgspec
import pytest

from cloister.app.verbs.records import RunWish
from cloister.core.errors import (
    Bug,
    CloisterError,
    Fenced,
    HostError,
    OutsideError,
    SandboxLost,
    UserError,
    describe,
)
from cloister.server.errors import Problem, problem


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UserError("bad_run", "m"), 400),
        (UserError("no_such_run", "m"), 404),
        (UserError("no_such_sandbox", "m"), 404),
        (UserError("not_found", "m"), 404),
        (UserError("run_finished", "m"), 409),
        (UserError("task_id_taken", "m"), 409),
        (UserError("too_large", "m"), 413),
        (UserError("too_long", "m"), 413),
        (UserError("too_many_commands", "m"), 429),
        (UserError("denied", "m"), 403),
        (HostError("no_disk", "m"), 503),
        (OutsideError("network", "m"), 502),
        (SandboxLost("m"), 410),
        (Fenced("m"), 409),
    ],
)
def test_each_kind_of_error_has_its_status_and_keeps_its_code(error: CloisterError, status: int) -> None:
    assert problem(error) == (status, Problem(error.code, "m"))
    assert problem(ExceptionGroup("wrapped", [error])) == (status, Problem(error.code, "m"))


@pytest.mark.parametrize(
    "error", [ValueError("secret"), ExceptionGroup("two", [KeyError("secret"), OSError()])]
)
def test_unexpected_errors_are_logged_and_hidden(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    status, body = problem(error)
    assert (status, body.code) == (500, "bug")
    assert "secret" not in body.message
    assert len(caplog.records) == 1


def test_a_bug_is_a_server_error() -> None:
    assert problem(Bug("m"))[0] == 500


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"prompt": 1, "repo": "r"}', "$.prompt"),
        (b'{"prompt": "p", "repo": "r", "budget": {"steps": "hunter2"}}', "$.budget.steps"),
        (
            b'{"prompt": "p", "repo": "r", "promt": "hunter2"}',
            "$: unknown field 'promt'; did you mean 'prompt'?",
        ),
        (
            b'{"prompt": "p", "repo": "r", "hunter2 is my password": 1}',
            "$: unknown field; known are prompt, repo, ",
        ),
        (
            b'{"prompt": "p", "repo": "r", "origin": "hunter2"}',
            "$.origin: the value is not one of ",
        ),
        (b'{"prompt": "hunter2"}', "`repo`"),
    ],
)
def test_a_wrong_record_is_described_by_field_and_never_by_value(body: bytes, where: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=RunWish)
    text = describe(caught.value, RunWish)
    assert where in text
    assert "hunter2" not in text
