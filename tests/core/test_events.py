import msgspec

from cloister.core.events import AnyBody, PhaseStarted, RunAdmitted, decode_body, encode_body
from cloister.core.requests import NewRun, check_new_run


def test_every_kind_of_event_survives_the_log() -> None:
    body = RunAdmitted(NewRun("fix it", "/somewhere"), "me")
    assert decode_body(encode_body(body)) == body


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert decode_body(b'{"type":"PhaseStarted","phase":"work","mood":"good"}') == PhaseStarted("work")


def test_the_tag_of_an_event_is_its_name() -> None:
    tags = {str(kind.__struct_config__.tag) for kind in AnyBody.__args__}
    assert tags == {kind.__name__ for kind in AnyBody.__args__}


def test_an_empty_prompt_is_refused_with_what_to_do() -> None:
    assert check_new_run(NewRun("  ", "/r")) == "The prompt is empty: say what should be done."


def test_a_prompt_of_ten_megabytes_is_refused_with_its_size_and_the_limit() -> None:
    problem = check_new_run(NewRun("x" * 10_000_000, "/r"))
    assert problem is not None
    assert "10,000,000 bytes" in problem
    assert "262,144" in problem


def test_attempts_and_budget_must_make_sense() -> None:
    assert check_new_run(NewRun("p", "/r", n=0)) is not None
    assert check_new_run(NewRun("p", "/r", n=99)) is not None
    nothing = msgspec.convert({"prompt": "p", "repo": "/r", "budget": {"steps": 0}}, NewRun)
    assert check_new_run(nothing) is not None
    assert check_new_run(NewRun("p", "/r", checks=(" ",))) is not None
    assert check_new_run(NewRun("p", "/r", checks=("true",) * 9)) is not None
    assert check_new_run(NewRun("p", "/r")) is None


def test_a_url_with_a_token_in_it_is_refused_because_it_would_be_stored() -> None:
    assert check_new_run(NewRun("p", "https://me:token@example.org/x.git")) is not None
    assert check_new_run(NewRun("p", "https://token@example.org/x.git")) is not None
    assert check_new_run(NewRun("p", "ssh://git@example.org/x.git")) is None
    assert check_new_run(NewRun("p", "git@example.org:x.git")) is None
