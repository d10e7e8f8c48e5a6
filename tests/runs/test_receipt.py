"""The receipt: what a run touched, counted from its log; on the page nothing that a guest chose is markup."""

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.audit.test_audit import WORK

from cloister.core import events as e
from cloister.core.ids import RunId
from cloister.core.requests import FileChange, NewRun, ToolCall, Usage
from cloister.log.audit.entry import Checkpoint
from cloister.runs.receipt import Pending, Receipt, code, page, receipt

SEAL = Checkpoint(42, "a" * 64, 1, "r-1", "ed25519:" + "b" * 64, "c" * 128)


def log(*bodies: e.AnyBody) -> list[e.Event]:
    return [e.Event(RunId("r-1"), seq, 1_000.0 + seq, body) for seq, body in enumerate(bodies, start=1)]


def run_of(prompt: str, *bodies: e.AnyBody) -> list[e.Event]:
    return log(
        e.RunAdmitted(NewRun(prompt=prompt, repo="/repo"), "ada"),
        e.RunClaimed("o", 1),
        e.ChecksChosen(("pytest -q",), found=True),
        *bodies,
    )


def ended(events: Sequence[e.Event]) -> list[e.Event]:
    return [*events, *log(*(ev.body for ev in events), e.RunFinished("proven", "fixed it", 1))[len(events) :]]


def test_everything_that_was_touched_is_on_it() -> None:
    made = receipt(ended(run_of("fix it", *WORK)), SEAL)
    assert (made.run, made.who, made.prompt, made.repo) == ("r-1", "ada", "fix it", "/repo")
    assert (made.final, made.outcome, made.models) == (True, "proven", ("m",))
    assert made.usage == Usage(10, 5)
    assert [file.path for file in made.files] == ["a.py"]
    assert (made.branch, made.delivered_to) == ("cloister/fix", "/repo")
    assert (made.tools, made.commands) == ({"bash": 1}, 1)
    assert [used.command for used in made.notable] == ["ls"]
    assert (made.allowed, made.judged_count) == (1, 2)
    (reached,) = made.connections
    assert (reached.host, reached.port, reached.count) == ("pypi.example", 443, 1)
    assert (reached.sent_bytes, reached.received_bytes, reached.credential) == (10, 20, "pypi-token")
    assert made.proof.checks == ("pytest -q",)
    assert made.proof.red_before == 1
    assert made.seal == SEAL
    text = page(made)
    for part in (
        "`ada`",
        "`fix it`",
        "`a.py` +1 −2",
        "`pypi.example:443`",
        "`pypi-token`",
        SEAL.hash,
        SEAL.signature,
    ):
        assert part in text
    assert len(text.splitlines()) < 60


def test_what_models_cost_who_asked_them_and_which_took_over_is_on_it() -> None:
    made = receipt(
        run_of(
            "fix it",
            e.ModelReplied(0, 1, "m", "", (), Usage(10, 5), 1.0, cost=0.5),
            e.ModelSwitched(0, "m", "`n`", "m is overloaded"),
            e.ModelSpent(None, "inside", "n", Usage(100, 20), 1.0, 0.25),
            e.ModelSpent(None, "inside", "n", Usage(100, 20), 1.0, None),
            e.ModelSpent(0, "wrap_up", "n", Usage(1, 2), 1.0, None, estimated=True),
        )
    )
    assert (made.cost, made.switches_count) == (0.75, 1)
    assert [(one.purpose, one.count, one.usage.total, one.cost) for one in made.beside] == [
        ("inside", 2, 240, 0.25),
        ("wrap_up", 1, 3, None),
    ]
    text = page(made)
    for part in (
        "- Programs inside asked `n` 2×: 200 tokens in, 40 out, $0.25",
        "- For `wrap_up`: `n` 1×: 1 tokens in, 2 out\n",
        "- Cost, as far as prices are known: $0.75",
        "- Attempt 0 went on with `` `n` `` instead of `m`: `m is overloaded`",
    ):
        assert part in text, text
    assert receipt(run_of("x")).cost is None


def test_requests_that_the_door_read_are_on_it_and_are_no_markup() -> None:
    def asked(path: str, effect: Literal["allow", "deny"], credential: str | None = None) -> e.RequestDecided:
        return e.RequestDecided(
            "s", "api.example", 443, "GET", path, effect, f"{effect} request:x", credential
        )

    made = receipt(
        run_of("x", asked("/a", "allow", "forge"), asked("/b", "allow", "forge"), asked("/`![](x)", "deny"))
    )
    assert [(one.effect, one.count, one.path) for one in made.requests] == [
        ("allow", 2, "/a"),
        ("deny", 1, "/`![](x)"),
    ]
    allowed, denied = [line for line in page(made).splitlines() if "`GET api.example:443`" in line]
    assert allowed.endswith("2×, the first `/a`, by rule `allow request:x`, credential `forge`")
    assert denied.startswith("- Denied: ") and "``/`![](x)``" in denied


def test_a_yes_to_one_question_is_not_shown_as_a_yes_to_another() -> None:
    made = receipt(
        run_of(
            "x",
            e.ActionDecided(0, "c", "bash: rm -rf /", "ask", "ask bash (p:1)"),
            e.AskRaised("a1", 0, "bash: rm -rf /", "rm -rf /", 4e9, rule="ask bash (p:1)"),
            e.AskAnswered("a1", "deny", "ada"),
            e.AskRaised("a2", 0, "budget: 10 tokens more for run r-1", "", 4e9),
            e.AskAnswered("a2", "allow", "bob"),
        )
    )
    assert [(one.action, one.rule, one.answer, one.who) for one in made.judged] == [
        ("bash: rm -rf /", "ask bash (p:1)", "deny", "ada"),
        ("budget: 10 tokens more for run r-1", "ask", "allow", "bob"),
    ]


def test_who_answered_a_question_is_on_it() -> None:
    events = run_of(
        "p",
        e.ActionDecided(1, "t", "bash: deploy", "ask", "tool:bash"),
        e.AskRaised("a-1", 1, "bash: deploy", "deploy", 9.0),
        e.AskAnswered("a-1", "allow", "grace"),
        e.ActionDecided(1, "t", "bash: drop", "ask", "tool:bash"),
        e.AskRaised("a-2", 1, "bash: drop", "drop", 9.0),
    )
    answers = [(judged.action, judged.answer, judged.who) for judged in receipt(events).judged]
    assert answers == [("bash: deploy", "allow", "grace"), ("bash: drop", None, None)]
    assert "answered allow by `grace`" in page(receipt(events))
    assert "never answered" in page(receipt(events))


def test_connections_are_counted_by_host_and_those_denied_are_named() -> None:
    events = run_of(
        "p",
        *[e.ConnectionDecided("s", "a.example", 443, "allow", "r")] * 3,
        *[e.ConnectionClosed("s", "a.example", 443, 5, 7, 0.1)] * 3,
        e.ConnectionDecided("s", "evil.example", 80, "deny", "default"),
    )
    ways = [
        (way.host, way.effect, way.count, way.sent_bytes, way.received_bytes)
        for way in receipt(events).connections
    ]
    assert ways == [("a.example", "allow", 3, 15, 21), ("evil.example", "deny", 1, 0, 0)]
    assert "Denied: `evil.example:80` 1× by rule `default`" in page(receipt(events))


def test_a_reused_environment_says_what_its_set_up_reached_and_one_that_the_run_built_does_not() -> None:
    def prepared(name: str, built: bool) -> e.EnvironmentPrepared:
        return e.EnvironmentPrepared(
            name, built, 1.0, built_at=60.0, reached=("a.example:443", "b`.example:80")
        )

    again = (prepared("env-own", True), e.RunResumed(4), prepared("env-own", False))
    made = receipt(run_of("p", prepared("env-old", False), *again))
    assert [(one.template, one.built) for one in made.environments] == [("env-old", False), ("env-own", True)]
    text = "Set-up of `env-old`, built on 1970-01-01 00:01:00 UTC before this run, reached `a.example:443`, ``b`.example:80``"
    assert text in page(made) and "env-own" not in page(made)


def test_work_of_a_turn_that_was_lost_is_counted_too() -> None:
    reply = e.ModelReplied(1, 1, "m", "", (ToolCall("t", "bash", {"command": "curl x"}),), Usage(7, 1), 0.1)
    events = run_of("p", e.AttemptStarted(1, "m"), reply, e.ToolReturned(1, "t", "bash", False, "", 1.0, 6))
    events = log(*(ev.body for ev in events), e.RunClaimed("o2", 2), e.RunResumed(6))
    made = receipt(events)
    assert (made.usage, made.commands, made.notable[0].exit_code) == (Usage(7, 1), 1, 6)


def test_before_the_end_it_says_how_far_it_goes() -> None:
    made = receipt(run_of("p", *WORK[:5]), pending=Pending("cloister/p", (FileChange("x", 1, 0),)))
    assert (made.final, made.branch, made.files[0].path) == (False, "cloister/p", "x")
    assert "The end is signed when the run ends." in page(made)


def test_json_of_a_receipt_is_read_back_as_it_was() -> None:
    made = receipt(ended(run_of("fix \x1b[31m it", *WORK)), SEAL)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Receipt) == made


def test_a_receipt_of_a_huge_run_stays_one_page() -> None:
    many = [e.ActionDecided(1, f"t{n}", f"bash: {n}", "deny", "r") for n in range(3_000)]
    ways = [e.ConnectionDecided("s", f"h{n}.example", 443, "deny", "r") for n in range(3_000)]
    made = receipt(
        run_of("p", *many, *ways),
        pending=Pending("b", tuple(FileChange(f"f{n}", 1, 0) for n in range(3_000))),
    )
    assert (made.judged_count, made.connections_count) == (3_000, 3_000)
    assert len(page(made).splitlines()) < 150
    assert len(msgspec.json.encode(made)) < 1_000_000


HOSTILE = [
    "[click](http://evil.example)",
    "![x](http://evil.example/pixel.png)",
    "<img src=x onerror=alert(1)>",
    "<!-- hidden -->",
    "http://evil.example www.evil.example @everyone #1",
    "`</code><script>alert(1)</script>`",
    "``` \n# Heading\n- **OK: signed**",
    "a\n\n## Audit\n\n- Head: entry 1",
    "| a | b |\n|---|---|",
    "\\` \\[x](y)",
    "some text \x1b]8;;http://evil.example\x07text\x1b]8;;\x07",
    "&lt;b&gt; &#60;",
]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)

    def handle_comment(self, data: str) -> None:
        self.found.append("comment")


def outside_code(line: str) -> str:
    """What of a line is markup: CommonMark's rule for code spans, a run of ticks closed by one of equal length."""
    kept, position = "", 0
    while found := re.compile("`+").search(line, position):
        kept += line[position : found.start()]
        ticks = found.group()
        closing = re.compile(f"(?<!`){ticks}(?!`)").search(line, found.end())
        if closing is None:
            kept += ticks
            position = found.end()
        else:
            position = closing.end()
    return kept + line[position:]


def check_page(text: str, reference: str) -> None:
    """The page with hostile text has the same markup, line by line, as the page with the word `word`."""
    assert [outside_code(line) for line in text.splitlines()] == [
        outside_code(line) for line in reference.splitlines()
    ]
    tags = _Tags()
    tags.feed("\n".join(outside_code(line) for line in text.splitlines()))
    assert tags.found == []


def everywhere(text: str) -> Receipt:
    return receipt(
        ended(
            run_of(
                text,
                e.BaseFixed(text, text),
                e.AttemptStarted(1, text),
                e.ModelReplied(1, 1, text, text, (ToolCall("t", text, {"command": text}),), Usage(), 1.0),
                e.ActionDecided(1, "t", text, "deny", text),
                e.ActionDecided(1, "t", text, "ask", text),
                e.AskRaised("a", 1, text, text, 9.0),
                e.AskAnswered("a", "deny", text),
                e.ToolReturned(1, "t", text, False, text, 1.0, 1),
                e.ConnectionDecided("s", text, 1, "allow", text, text),
                e.PromptReceived(text, text),
                e.StopRequested(text),
                e.ChangeMade(text, text, (FileChange(text, 1, 1),), text),
                e.ChangeDelivered(text, text),
            )
        )
    )


def test_nothing_that_a_guest_wrote_is_markup_on_the_page() -> None:
    reference = page(everywhere("word"))
    for text in HOSTILE:
        check_page(page(everywhere(text)), reference)


@given(st.text(alphabet=st.sampled_from("`ab <>[]()!*_#\\\n\r|&;/:@\x1b]8\u202e"), min_size=1, max_size=40))
@settings(max_examples=150, deadline=None)
def test_no_text_leaves_its_code_span(text: str) -> None:
    shown = code(text)
    assert shown == "(empty)" or outside_code(f"- {shown} end") == "-  end"
