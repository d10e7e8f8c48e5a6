import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.cli.screen.screen import Flow, Screen
from cloister.core.events import RunFinished
from cloister.core.ids import OwnerId
from cloister.core.requests import NewRun
from cloister.log.sqlite.backbone import open_backbone
from cloister.runs.event_text.lines import Fragment, Line, Status, bar, counted, seconds


def test_in_a_pipe_there_is_text_and_nothing_else() -> None:
    file = io.StringIO()
    screen = Screen(file)
    screen.put([Line("one", "good"), Status("busy", 0.5), Fragment("I will "), Fragment("look.\nTw")])
    screen.put([Fragment("ice."), Line("two [bold]as it is[/bold] :smile:", "head"), Status("busy")])
    screen.tick()
    screen.put([Fragment("the end")])
    screen.close()
    assert file.getvalue() == "one\nI will look.\nTwice.\ntwo [bold]as it is[/bold] :smile:\nthe end\n"


def flowed(parts: list[str], width: int) -> str:
    flow = Flow(width)
    return "".join(flow.feed(part) for part in parts) + flow.flush()


def test_text_is_broken_between_words_wherever_it_was_cut() -> None:
    text = "the quick brown fox jumps over the lazy dog\nand sleeps"
    broken = "the quick brown fox\njumps over the lazy\ndog\nand sleeps"
    assert flowed([text], 20) == broken
    assert flowed(list(text), 20) == broken
    assert flowed(["x" * 50], 20) == "x" * 50


@given(st.lists(st.text(alphabet="ab \n", max_size=12), max_size=12))
def test_flowing_changes_gaps_only(parts: list[str]) -> None:
    assert flowed(parts, 20).split() == "".join(parts).split()


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (62, "1 min 02 s"), (3_725, "1 h 02 min")]
)
def test_durations_are_formatted_with_units(value: float, text: str) -> None:
    assert seconds(value) == text


def test_counts_and_bars() -> None:
    assert (counted(1, "file"), counted(1_200, "file")) == ("1 file", "1,200 files")
    assert bar(0.5, 4) == "██░░  50 %"
    assert bar(7, 4) == "████ 100 %"


def on_a_terminal(argv: list[str], env: dict[str, str]) -> str:
    """What a program writes when its output is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(argv, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # how Linux says that nobody has the other end any more
                break
            if not part:
                break
            written += part
    os.close(ours)
    assert process.returncode == 0
    return written.decode()


def test_a_terminal_gets_colours_unless_told_otherwise(plain_env: dict[str, str], data_dir: Path) -> None:
    async def make() -> None:
        async with open_backbone(data_dir / "cloister.db", owner_lives=lambda _: False) as backbone:
            run, _ = await backbone.admit(NewRun("fix it", "/repo"), "ann")
            fence = await backbone.claim(OwnerId("o-aaaaaaaaaaaa"), run)
            assert fence is not None
            await backbone.append(fence, [RunFinished("proven", "Done.", 1)])

    anyio.run(make)
    argv = [sys.executable, "-m", "cloister", "watch", "last"]
    env = plain_env | {"TERM": "xterm-256color"}
    assert "\x1b[32m✓ proven  Done." in on_a_terminal(argv, env)
    plain = on_a_terminal(argv, env | {"NO_COLOR": "1"})
    assert "\r\n✓ proven  Done.\r\n" in plain
    assert "\x1b[3" not in plain
    dumb = on_a_terminal(argv, env | {"TERM": "dumb"})
    assert "\x1b" not in dumb
