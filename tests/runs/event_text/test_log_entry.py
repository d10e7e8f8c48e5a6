from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.events import ChecksRan, Event, PromptReceived, ToolReturned
from cloister.core.ids import RunId
from cloister.runs.event_text.lines import entry_lines


def shown(body: ToolReturned | ChecksRan | PromptReceived) -> list[str]:
    head, *rest = entry_lines(Event(RunId("r-0123456789ab"), 7, 1_700_000_000.0, body))
    seq, _date, _time, *words = head.split()
    assert seq == "7"
    return [" ".join(words), *rest]


def test_short_fields_share_the_head_line() -> None:
    assert shown(ToolReturned(1, "c1", "bash", True, "ok", 0.25, 0)) == [
        "ToolReturned attempt=1 call=c1 tool=bash ok=true text=ok seconds=0.250 exit_code=0 origin=tool"
    ]


def test_long_texts_are_whole_and_indented() -> None:
    text = "\n".join(f"line {number}" for number in range(200))
    assert shown(PromptReceived(text, "ann")) == [
        "PromptReceived who=ann origin=user",
        "      text:",
        *(f"        line {number}" for number in range(200)),
    ]


def test_records_inside_an_event_are_written_out() -> None:
    body = ChecksRan(
        1, 2, (Diagnosis("pytest -q", 1, 0.5, tail="one\ntwo"),), Comparison(still=("test_a", "test_b"))
    )
    assert shown(body) == [
        "ChecksRan attempt=1 step=2",
        "      diagnoses:",
        "        -",
        "          check pytest -q",
        "          exit_code 1",
        "          seconds 0.5",
        "          unlisted 0",
        "          tail one",
        "            two",
        "      comparison:",
        "        still",
        "          - test_a",
        "          - test_b",
        "        passed 0",
        "        green false",
        "        ran 0",
    ]


def test_a_terminal_escape_in_the_log_stays_text() -> None:
    lines = shown(PromptReceived("\x1b[2Jgone\x07", "ann\x1b]0;x\x07"))
    assert lines == ["PromptReceived text=gone\\x07 who=ann origin=user"]
