"""The live screen in a real terminal of 80 by 24: answer, say, stop the step, leave, come back, resize, stop."""

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
[[reply]]
say = "I will ask first."
calls = [{ tool = "bash", command = "touch first" }]

[[reply]]
calls = [{ tool = "bash", command = "touch second" }]

[[reply]]
calls = [{ tool = "bash", command = "seq -f 'line %g' 40; printf '\\\\033[2Jno screen is cleared\\\\n'; tail -f /dev/null" }]

[[reply]]
say = "Something else then."
calls = [{ tool = "bash", command = "echo in the long command; tail -f /dev/null" }]
"""


class Terminal:
    """A shell in tmux."""

    def __init__(self, socket: Path, cloister: Any) -> None:
        self._tmux = ["tmux", "-u", "-f", "/dev/null", "-S", str(socket)]
        self._cloister = cloister
        self.tmux(
            "new-session", "-d", "-x", "80", "-y", "24", "env -i " + self._env() + " bash --norc --noprofile"
        )
        self.tmux("set-option", "-g", "escape-time", "0")
        self.tmux("set-option", "-g", "history-limit", "5000")

    def _env(self) -> str:
        env = {name: value for name, value in self._cloister.env.items() if name != "COLUMNS"}
        env |= {"TERM": "screen-256color", "LANG": "C.UTF-8", "PS1": "shell$ "}
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())

    def tmux(self, *args: str) -> str:
        return subprocess.run([*self._tmux, *args], check=True, capture_output=True, text=True).stdout

    def keys(self, *names: str) -> None:
        self.tmux("send-keys", *names)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def run(self, *args: str) -> None:
        self.type(shlex.join(self._cloister.argv(*args)))
        self.keys("Enter")

    def screen(self, *, history: bool = False) -> str:
        return self.tmux("capture-pane", "-p", *(("-S", "-") if history else ()))

    def until(self, found: Callable[[str], bool], seconds: float = 90) -> str:
        deadline = time.monotonic() + seconds
        while not found(shown := self.screen()):
            assert time.monotonic() < deadline, f"not shown:\n{shown}"
            time.sleep(0.02)
        return shown

    def see(self, text: str) -> str:
        return self.until(lambda shown: text in shown)

    def at_shell(self) -> None:
        """Back at the prompt of a shell whose terminal works as before."""
        self.until(lambda shown: shown.rstrip().splitlines()[-1:] == ["shell$"])
        self.keys("C-l")
        self.type(
            'clear; stty -a | tr " " "\\n" | grep -xE -- "-?(icanon|isig|echo|icrnl);?" | tr "\\n" " "; echo'
        )
        self.keys("Enter")
        shown = self.until(lambda shown: shown.rstrip().splitlines()[-1:] == ["shell$"] and "icanon" in shown)
        assert sorted(shown.split("shell$")[0].split()) == ["echo", "icanon", "icrnl", "isig"]


@pytest.fixture
def terminal(cloister: Any, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path / "tmux", cloister)
    yield opened
    opened.tmux("kill-server")


def start(terminal: Terminal, cloister: Any) -> None:
    ledger, script = cloister.ledger(), cloister.script(SCRIPT)
    terminal.run(
        *("run", "p", "--repo", str(ledger), "--model", script),
        *("--check", "true", "--rule", "ask bash:touch *"),
    )


def test_a_run_is_steered_with_the_keyboard_left_and_watched_again(cloister: Any, terminal: Terminal) -> None:
    cloister("serve", "--background")
    start(terminal, cloister)
    terminal.see("[y] allow  [n] deny")
    terminal.keys("y")
    terminal.see(": allow by ")
    terminal.until(lambda shown: "touch second" in shown and "[y] allow  [n] deny" in shown)
    terminal.keys("n")
    terminal.see(": deny by ")

    shown = terminal.see("│ no screen is cleared")
    assert "bash running" in shown
    assert "│ line 6\n" in shown, "the first lines of the output stay"
    assert "line 20" not in shown, "the newest ones scroll in a pane"
    assert "line 40" in shown
    terminal.type("please hurry up")
    terminal.see("› please hurry up")
    terminal.keys("C-w", "BSpace", "Enter")
    terminal.see(": please hurry\n")

    terminal.tmux("resize-window", "-x", "60", "-y", "20")
    shown = terminal.until(lambda shown: "Esc stops the st" in shown)
    terminal.keys("x", "BSpace")
    shown = terminal.until(lambda shown: shown.count("›") == 1 and "bash running" in shown)
    assert max(map(len, shown.splitlines())) <= 60
    terminal.tmux("resize-window", "-x", "80", "-y", "24")

    terminal.keys("Escape")
    terminal.see("│ in the long command")
    terminal.keys("C-z")
    terminal.see("Stopped")
    terminal.at_shell()
    terminal.type("fg")
    terminal.keys("Enter")
    terminal.see("› type to tell")
    terminal.keys("C-c")
    terminal.see("Ctrl-C again stops the run")
    terminal.see("The run continues. Watch it: cloister watch r-")
    terminal.at_shell()
    assert cloister.json("ps")["state"] == "running"

    terminal.run("watch", "last")
    terminal.until(lambda shown: "in the long command" in shown and "› type to tell" in shown)
    terminal.keys("C-c", "C-c")
    terminal.see("■ stopped")
    terminal.at_shell()
    bodies = [event["body"] for event in cloister.events()]
    assert [body["answer"] for body in bodies if body["type"] == "AskAnswered"] == ["allow", "deny"]
    told = [body["text"] for body in bodies if body["type"] == "ToolReturned"]
    assert told[2].startswith("Stopped by ")
    assert "StopRequested" in [body["type"] for body in bodies]


DECIDES = """
[[reply]]
calls = [{ tool = "ask", question = "Who gets the cent?", choices = ["the first", "the last"], default = "the first", wait_seconds = 900 }]

[[reply]]
expect = "answers: the last"
calls = [{ tool = "ask", question = "To which digit?", choices = [], default = "the first", wait_seconds = 900 }]

[[reply]]
expect = "answers: the second"
calls = [{ tool = "bash", command = "echo at work; tail -f /dev/null" }]

[[reply]]
calls = [{ tool = "bash", command = "echo on again; tail -f /dev/null" }]
"""


def test_questions_of_the_model_are_answered_and_the_run_is_paused_with_keys(
    cloister: Any, terminal: Terminal
) -> None:
    cloister("serve", "--background")
    model = cloister.script(DECIDES)
    terminal.run("run", "p", "--repo", str(cloister.ledger()), "--model", model, "--check", "true")
    terminal.see("? [1] the first  [2] the last")
    terminal.keys("2")
    terminal.see("To which digit?")
    terminal.see("[Tab] answers with what you type")
    terminal.type("the second")
    terminal.keys("Tab")
    terminal.see("│ at work")
    terminal.keys("C-p")
    terminal.see("‖ Paused before its next step. Ctrl-P lets it go on.")
    terminal.keys("Escape")
    terminal.see("stopped the current step")
    terminal.keys("C-p")
    terminal.see("│ on again")
    terminal.until(lambda shown: "Ctrl-P lets it go on" not in shown)
    terminal.keys("C-c", "C-c")
    terminal.see("■ stopped")
    terminal.at_shell()
    bodies = [event["body"] for event in cloister.events()]
    kinds = [body["type"] for body in bodies]
    assert [body["text"] for body in bodies if body["type"] == "QuestionAnswered"] == [
        "the last",
        "the second",
    ]
    replies = [place for place, kind in enumerate(kinds) if kind == "ModelReplied"]
    assert replies[2] < kinds.index("PauseRequested") < kinds.index("ResumeRequested") < replies[3]


CHECKED = """
[[reply]]
say = "I write the file."
calls = [{ tool = "write", path = "slow", content = "x" }]

[[reply]]
name = "on"
say = "I look around."
calls = [{ tool = "bash", command = "echo here" }]
goto = "on"
"""
SLOW = "if test -e slow; then echo it takes long; tail -f /dev/null; fi"


def test_escape_stops_running_checks_and_the_model_goes_on(cloister: Any, terminal: Terminal) -> None:
    cloister("serve", "--background")
    model = cloister.script(CHECKED)
    terminal.run("run", "p", "--repo", str(cloister.ledger()), "--model", model, "--check", SLOW)
    shown = terminal.until(lambda shown: "checking: " in shown and "│ it takes" in shown)
    assert max(map(len, shown.splitlines())) <= 80
    replies = cloister.kinds().count("ModelReplied")
    terminal.keys("Escape")
    cloister.until(lambda: cloister.kinds().count("ModelReplied") > replies)
    bodies = [event["body"] for event in cloister.events()]
    assert {"InterruptRequested", "ChecksRan"} & {body["type"] for body in bodies} == {"InterruptRequested"}
    assert any(body["changed"] for body in bodies if body["type"] == "TurnEnded"), "the files are saved"
    terminal.until(lambda shown: "checking: " in shown and "│ it takes" in shown)  # they are still due
    terminal.keys("C-c", "C-c")
    terminal.see("■ stopped")
    terminal.at_shell()


def test_leaving_a_run_that_the_command_drives_hands_it_to_a_server(
    cloister: Any, terminal: Terminal
) -> None:
    start(terminal, cloister)
    terminal.see("[y] allow  [n] deny")
    terminal.keys("C-c")
    terminal.see("The run continues. Watch it: cloister watch r-")
    terminal.at_shell()
    terminal.run("watch", "last")
    terminal.see("[y] allow  [n] deny")
    terminal.keys("y")
    terminal.see(": allow by ")
    terminal.keys("C-c", "C-c")
    terminal.see("■ stopped")
    terminal.at_shell()
    assert cloister.json("ps")["outcome"] == "stopped"


def test_a_signal_that_ends_the_command_leaves_the_terminal_as_it_was(
    cloister: Any, terminal: Terminal
) -> None:
    cloister("serve", "--background")
    start(terminal, cloister)
    terminal.see("[y] allow  [n] deny")
    pane = terminal.tmux("display-message", "-p", "#{pane_pid}").strip()
    child = Path(f"/proc/{pane}/task/{pane}/children").read_text().split()[0]
    subprocess.run(["kill", "-TERM", child], check=True)
    terminal.see("The run continues.")
    terminal.at_shell()
    cloister("stop", "last")


def test_person_permits_changes_of_tests_with_a_key(cloister: Any, terminal: Terminal) -> None:
    repository = cloister.cwd / "till"
    repository.mkdir()
    (repository / "till.py").write_text("def total(prices):\n    return sum(prices)\n")
    test = "from till import total\n\n\ndef test_total():\n    assert total([1, 2]) == 4\n"
    (repository / "test_till.py").write_text(test)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(repository, *args)
    script = cloister.script(
        """
[[reply]]
calls = [
    { tool = "edit", path = "test_till.py", old = "== 4", new = "== 3" },
    { tool = "finish", summary = "The test is out of date." },
]
"""
    )

    terminal.run("run", "Update the test.", "--repo", str(repository), "--model", script)
    terminal.see("[y] allow  [n] deny")
    terminal.keys("y")
    terminal.see(": allow by ")
    terminal.at_shell()

    bodies = [event["body"] for event in cloister.events()]
    [asked] = [body for body in bodies if body["type"] == "AskRaised"]
    assert "-    assert total([1, 2]) == 4\n+    assert total([1, 2]) == 3" in asked["detail"]
    assert bodies[-1]["outcome"] == "proven"
    assert "change tests: test_till.py" in cloister("receipt", "last").stdout
    branch = next(body["branch"] for body in bodies if body["type"] == "ChangeDelivered")
    message = cloister.git(repository, "log", "-1", "--format=%B", branch)
    assert "changed with permission: test_till.py" in message
