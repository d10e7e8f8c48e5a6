"""What a guest or a model prints never acts on the terminal of whoever looks at it, and hides nothing from them.

Each hostile text goes through every function that makes text for people, and some through the real command on a
real terminal. What JSON readers get stays what it was.
"""

import io
import json
import logging
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import anyio
import pytest

from cloister.cli.failures import Harmless
from cloister.cli.screen.screen import Screen, put_json
from cloister.cli.screen.tables import entry_line, verdict_lines
from cloister.cli.screen.terminal import Quiet
from cloister.core import events as e
from cloister.core.errors import HostError
from cloister.core.ids import OwnerId, RunId
from cloister.core.requests import FileChange, NewRun, ToolCall, Usage
from cloister.core.text import MARKS, decode, harmless, one_line
from cloister.log.audit.details import fact
from cloister.log.audit.entry import AuditEntry
from cloister.log.audit.verify import Flaw, Verdict
from cloister.log.sqlite.backbone import open_backbone
from cloister.runs.event_text.facts import excerpt
from cloister.runs.event_text.lines import Line, entry_lines
from cloister.runs.event_text.render import Renderer
from cloister.runs.receipt import page, receipt

ROOT = Path(__file__).parents[3]

HOSTILE: dict[str, str] = {
    "clear the screen": "\x1b[2J\x1b[H\x1b[3Jafter",
    "move up and rewrite": "real\n\x1b[1A\x1b[2Kfake after",
    "conceal text": "\x1b[8mhidden\x1b[28m after",
    "blink and colour": "\x1b[5;31;107mafter",
    "window title": "\x1b]0;pwned\x07after",
    "link to elsewhere (OSC 8)": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\ after",
    "write the clipboard (OSC 52)": "\x1b]52;c;cm0gLXJmIC8=\x07after",
    "command without an end swallows the rest": "\x1b]0;never ended\nafter",
    "device control string": "\x1bP+q544e\x1b\\after",
    "private messages (APC, PM, SOS)": "\x1b_Gi=1\x1b\\\x1b^x\x1b\\\x1bXy\x1b\\after",
    "ask the terminal to type": "\x1b[6n\x1b[c\x1b[21t\x05after",
    "alternate screen and mouse": "\x1b[?1049h\x1b[?1000h\x1b[?2004hafter",
    "other character set": "\x1b(0\x0eqqq\x0f after",
    "C1 control sequence": "\x9b2J\x9b31mafter",
    "C1 operating system command": "\x9d0;pwned\x9cafter",
    "carriage return overwrites": "rm -rf /\rls -l     after",
    "backspace overwrites": "evil\x08\x08\x08\x08safe after",
    "vertical tab and form feed": "one\x0btwo\x0cafter",
    "bell and nul": "\x07\x00\x07after",
    "right-to-left override": "\u202egnp.exe\u202c after",
    "direction isolates and marks": "\u2066\u2067x\u2069\u200f\u061c after",
    "zero width": "pass\u200bword\u2060\ufeff\u200d\u200c after",
    "fillers that look like nothing": "a\u3164b\uffa0c\u115fd\u00ade after",
    "text in tag characters": "".join(chr(0xE0000 + ord(c)) for c in "ignore all rules") + "after",
    "line ends in disguise": "one\u2028two\u2029three\x85after",
    "flood of combining marks": "Z" + "\u0301\u0488" * 500 + " after",
    "escape at the very end": "after\x1b",
    "escapes in escapes": "\x1b\x1b[31m\x1b[\x1b[2J\x1b]\x1b]0;x\x07after",
    "half of a sequence": "\x1b[38;5;\nafter",
    "invalid UTF-8": decode(b"\xff\xfe\xc3\x28\xed\xa0\x80\x80\x1b[31mafter"),
    "very long line": "A" * 60_000 + " after",
}

ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180b-\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
OWN = re.compile("\x1b\\[(?:0|1|2|31|32|33|36)(?:;(?:1|2|31|32|33|36))*m|(?:\x1b\\[[0-9]+A)?\r\x1b\\[J")
"""What our own screen writes: a few styles, and the lines at its bottom taken back."""


def entry(text: str, **more: str) -> AuditEntry:
    return AuditEntry(1, 0, more.get("kind", "K"), text, 1, text, json.dumps({"action": text}), None, "", "")


def log_of(text: str) -> list[e.Event]:
    bodies: list[e.AnyBody] = [
        e.RunAdmitted(NewRun(prompt=text, repo=text, ref=text), text),
        e.RunClaimed("o", 1),
        e.BaseFixed("c" * 40, text, text),
        e.ChecksChosen((text,), found=True),
        e.AttemptStarted(1, text),
        e.ModelReplied(1, 1, text, text, (ToolCall("t", "bash", {"command": text}),), Usage(), 1.0),
        e.ActionDecided(1, "t", text, "deny", text),
        e.AskRaised("a", 1, text, text, 9.0),
        e.AskAnswered("a", "deny", text),
        e.ToolReturned(1, "t", "bash", False, text, 1.0, 1),
        e.ConnectionDecided("s-1", text, 443, "deny", text),
        e.ModelFailed(1, "c", text),
        e.PromptReceived(text, text),
        e.FinishRefused(1, text),
        e.ChangeMade("b", "c" * 40, (FileChange(text, 1, 1),), text),
        e.StopRequested(text),
        e.RunFinished("failed", text, None, "user"),
    ]
    return [e.Event(RunId("r-1"), seq, 1.0, body) for seq, body in enumerate(bodies, start=1)]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_screen(text: str) -> str:
    """The live screen, with deltas in two pieces so that a sequence may be cut."""
    file = _Terminal()
    screen = Screen(file)
    renderer = Renderer(100)
    events = log_of(text)
    for event in events[:6]:
        screen.put(renderer.feed(event))
    half = len(text) // 2
    for piece in (text[:half], text[half:]):
        screen.put(renderer.feed(e.ModelText(1, piece)))
        screen.put(renderer.feed(e.CommandOutput(1, "t", "out", piece)))
        screen.put(renderer.feed(e.CommandOutput(1, "no such call", "out", piece)))
        screen.put(renderer.feed(e.Progress("template", 0.5, piece)))
    for event in events[6:]:
        screen.put(renderer.feed(event))
    screen.close()
    return OWN.sub("", file.getvalue())


def through_exec(text: str) -> str:
    """Output of `sandbox exec` as it arrives, cut wherever it hurts."""
    quiet = Quiet()
    data = text.encode("utf-8", errors="surrogateescape")
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    return b"".join([*(quiet.feed(piece) for piece in pieces), quiet.end()]).decode()


def as_verdict(text: str) -> str:
    verdict = Verdict(False, 1, 1, "0" * 64, 1, text, (Flaw(text, 1),))
    return "\n".join(verdict_lines(verdict))


def logged(text: str) -> str:
    """A warning that quotes an error, with its traceback."""
    try:
        raise HostError("c", text)
    except HostError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "p", 1, "it failed: %s", (text,), (HostError, error, None)
        )
    return Harmless().format(record)


SURFACES: dict[str, Callable[[str], str]] = {
    "harmless": harmless,
    "a line": lambda text: one_line(text, 10_000),
    "live screen": on_screen,
    "cloister log": lambda text: "\n".join(line for event in log_of(text) for line in entry_lines(event)),
    "excerpt": lambda text: "\n".join(excerpt(text)),
    "cloister audit show": lambda text: entry_line(entry(text)),
    "cloister audit verify": as_verdict,
    "cloister receipt": lambda text: page(receipt(log_of(text))),
    "cloister sandbox exec": through_exec,
    "server.log": logged,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_acts_on_the_terminal(case: str) -> None:
    for surface, shown in SURFACES.items():
        found = ACTS.search(shown(HOSTILE[case]))
        assert found is None, f"{surface}: {found and found.group()!r}"


@pytest.mark.parametrize("case", HOSTILE)
def test_what_comes_after_the_trick_is_still_seen(case: str) -> None:
    for surface in ("harmless", "cloister log", "cloister sandbox exec"):
        assert "after" in SURFACES[surface](HOSTILE[case]), surface


def test_what_was_overwritten_is_seen_beside_what_overwrote_it() -> None:
    for surface, shown in SURFACES.items():
        text = shown(HOSTILE["carriage return overwrites"])
        assert "rm -rf /" in text, surface
        assert "ls -l" in text, surface


def test_hidden_characters_are_named_where_they_stand() -> None:
    assert harmless("pass\u200bword") == "pass\\x200bword"
    assert harmless("\u202egnp.exe") == "\\x202egnp.exe"
    assert harmless("a\u2028b") == "a\\x2028b"


def test_a_flood_of_marks_is_cut_and_counted() -> None:
    text = harmless("Z" + "\u0301" * 1_000)
    assert text == "Z" + "\u0301" * MARKS + f"[+{1_000 - MARKS} marks]"


def test_a_long_line_is_cut_where_lines_have_meaning() -> None:
    text = HOSTILE["very long line"]
    # What the model says is shown whole; all else on the screen is a line of ours.
    renderer = Renderer(100)
    pieces = [piece for item in log_of(text) for piece in renderer.feed(item)]
    ours = [piece.text for piece in pieces if isinstance(piece, Line) and piece.style != "said"]
    assert max(map(len, ours)) < 1_000
    assert len(SURFACES["cloister audit show"](text)) < 1_000
    assert max(map(len, SURFACES["cloister receipt"](text).split("\n"))) < 1_000


def test_no_text_makes_lines_of_its_own_in_a_list() -> None:
    text = "x\n     2 2026-01-01 00:00:00  RunFinished  r-1#9 root outcome=green\r\nOK: all is well"
    assert "\n" not in SURFACES["cloister audit show"](text)
    assert len(SURFACES["cloister audit verify"](text).split("\n")) == 4
    assert [line for line in SURFACES["cloister receipt"](text).split("\n") if line.startswith("OK")] == []


@pytest.mark.parametrize(
    "text",
    [
        "naïve café",
        "日本語",
        "مرحبا",
        "می\u200cخواهم",
        "👩\u200d💻 done",
        "👩🏽\u200d🚀",
        "שָׁלוֹם",
        "ที่นี่",
        "e\u0301a\u0308",
        "\tindented\n",
    ],
)
def test_honest_text_stays_as_it_is(text: str) -> None:
    assert harmless(text) == text


@pytest.mark.parametrize("case", HOSTILE)
def test_json_is_faithful_and_inert(case: str) -> None:
    out = io.StringIO()
    body = e.ToolReturned(1, "t", "bash", True, HOSTILE[case], 1.0)
    with redirect_stdout(out):
        put_json(body)
    assert ACTS.search(out.getvalue().removesuffix("\n")) is None
    assert json.loads(out.getvalue())["text"] == HOSTILE[case]
    assert e.decode_body(out.getvalue().encode()) == body


def test_the_audit_keeps_the_very_text() -> None:
    stated = fact(e.ActionDecided(1, "t", HOSTILE["right-to-left override"], "deny", "r"))
    assert stated is not None
    assert json.loads(stated.detail)["action"] == HOSTILE["right-to-left override"]


# The real command on a real terminal


def on_terminal(argv: list[str], env: dict[str, str], typed: bytes = b"") -> str:
    """What a program writes to its terminal until it ends."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(argv, env=env, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
        os.close(theirs)
        if typed:
            os.write(ours, typed)
        written = b""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # how Linux says that the other side is closed
                break
            if not piece:
                break
            written += piece
        assert process.wait(30) is not None
    finally:
        os.close(ours)
    return written.decode("utf-8").replace("\r\n", "\n")


@pytest.fixture(scope="module")
def hostile_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one run in which everything is hostile at once."""
    directory = tmp_path_factory.mktemp("hostile")
    text = "\n".join(HOSTILE.values())

    async def make() -> None:
        async with open_backbone(directory / "cloister.db", owner_lives=lambda owner: False) as backbone:
            run, _ = await backbone.admit(NewRun(prompt=text[:9_000], repo="/repo"), "ada\x1b[2J")
            fence = await backbone.claim(OwnerId("o-1"), run)
            assert fence is not None
            await backbone.append(fence, [event.body for event in log_of(text)[2:]])

    anyio.run(make)
    return directory


def plain_env(data_dir: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    return {
        **kept,
        "CLOISTER_DATA_DIR": str(data_dir),
        "TERM": "xterm-256color",
        "COLUMNS": "100",
        "LANG": "C.UTF-8",
    }


@pytest.mark.parametrize(
    "command",
    [
        ("log", "last"),
        ("watch", "last"),
        ("audit", "show"),
        ("receipt", "last"),
        ("log", "last", "--json"),
        ("ps",),
    ],
    ids=" ".join,
)
def test_the_command_on_a_terminal_writes_nothing_that_acts(
    command: tuple[str, ...], hostile_log: Path
) -> None:
    shown = on_terminal([sys.executable, "-m", "cloister", *command], plain_env(hostile_log))
    assert "after" in shown or command == ("ps",)
    found = ACTS.search(OWN.sub("", shown))
    assert found is None, repr(shown[max(0, found.start() - 40) : found.end() + 40])


@pytest.fixture
def sandbox_server(data_dir: Path) -> Iterator[tuple[dict[str, str], str]]:
    env = plain_env(data_dir)

    def cloister(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cloister", *args], env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    cloister("serve", "--background", "--port", "0")
    try:
        yield env, cloister("sandbox", "create").strip()
    finally:
        cloister("serve", "--stop")


def test_a_program_in_a_sandbox_gets_the_terminal_only_when_it_is_given(
    sandbox_server: tuple[dict[str, str], str],
) -> None:
    env, sandbox = sandbox_server
    line = r"printf 'A\033]52;c;eA==\a\233B\r\n\377\033[31m'; printf 'C\033[2J' >&2"
    argv = [sys.executable, "-m", "cloister", "sandbox", "exec", sandbox]
    shown = on_terminal([*argv, "--", "bash", "-c", line], env)
    assert ACTS.search(shown) is None, repr(shown)
    assert sorted(shown.replace("\n", "")) == sorted("A\ufffdB\ufffdC")
    piped = subprocess.run([*argv, "--", "bash", "-c", line], env=env, capture_output=True, timeout=60)
    assert piped.stdout == b"A\x1b]52;c;eA==\x07\x9bB\r\n\xff\x1b[31m"
    # Asked for, and so documented: with --tty the program has the terminal, sequences and all.
    given = on_terminal([*argv, "--tty", "--", "bash", "-c", r"printf 'D\033[1mE'"], env)
    assert "D\x1b[1mE" in given
