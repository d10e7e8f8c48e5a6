"""What a person sees of a run, from events alone."""

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from cloister.core import diagnosis as d
from cloister.core import events as e
from cloister.core.diagnosis import Comparison, Diagnosis
from cloister.core.ids import RunId
from cloister.core.requests import FileChange, ForkedFrom, Isolation, NewRun, ToolCall, Usage
from cloister.runs.event_text.lines import IDLE, Fragment, Line, Piece, Status
from cloister.runs.event_text.render import Renderer, words

RUN = RunId("r-0123456789ab")
ISOLATION = Isolation(tier="container", runtime="crun 1.8.1", shares_kernel=True, store="overlay")
CHECK = "python3 -m pytest -q"


def told(*bodies: e.AnyBody, start: int = 1) -> list[e.Event]:
    """The bodies as a log: gapless numbers, one second apart."""
    return [e.Event(RUN, seq, 1_700_000_000.0 + seq, body) for seq, body in enumerate(bodies, start)]


def admitted(n: int = 1) -> e.RunAdmitted:
    return e.RunAdmitted(NewRun(prompt="make the tests pass", repo="/home/ann/shop", n=n), "ann")


def diagnosis(failed: int, passed: int) -> Diagnosis:
    tests = [d.TestResult(f"test_bad_{number}", "failed") for number in range(failed)]
    tests += [d.TestResult(f"test_good_{number}", "passed") for number in range(passed)]
    return Diagnosis(CHECK, 1 if failed else 0, 0.4, tests=tuple(tests))


def compared(fixed: int, still: int, passed: int) -> Comparison:
    return Comparison(
        fixed=tuple(f"test_bad_{number}" for number in range(fixed)),
        still=tuple(f"test_bad_{fixed + number}" for number in range(still)),
        passed=passed,
        green=still == 0,
        ran=1,
        shown=tuple(f"test_bad_{number}" for number in range(fixed)),
    )


def replied(text: str, *calls: ToolCall, attempt: int = 1, step: int = 1) -> e.ModelReplied:
    return e.ModelReplied(attempt, step, "script:/s.toml", text, calls, Usage(100, 20), 0.5)


def bash(command: str, name: str = "c1") -> ToolCall:
    return ToolCall(name, "bash", {"command": command})


def allowed(call: str = "c1", attempt: int = 1) -> e.ActionDecided:
    return e.ActionDecided(attempt, call, "bash: …", "allow", "built-in")


def returned(text: str, *, ok: bool = True, code: int | None = 0, seconds: float = 0.1) -> e.ToolReturned:
    return e.ToolReturned(1, "c1", "bash", ok, text, seconds, code)


def pieces(items: Iterable[e.Event | e.Delta], renderer: Renderer | None = None) -> list[Piece]:
    renderer = renderer or Renderer(100)
    return [piece for item in items for piece in renderer.feed(item)]


def lines(items: Iterable[e.Event | e.Delta]) -> list[str]:
    return [piece.text for piece in pieces(items) if isinstance(piece, Line)]


def whole_run() -> Sequence[e.Event]:
    call = bash("sed -i s/-/+/ shop/cart.py")
    return told(
        admitted(),
        e.RunClaimed("o-1", 1),
        e.PhaseStarted("fetch"),
        e.PhaseEnded("fetch", 0.31),
        e.BaseFixed("1a2b3c4d5e6f7a8b", "main", "2 changed files are not committed and not part of the run."),
        e.PhaseStarted("template"),
        e.PhaseEnded("template", 62.0),
        e.PhaseStarted("create"),
        e.PhaseEnded("create", 0.08),
        e.SandboxOpened("s-1", ISOLATION),
        e.PhaseStarted("baseline"),
        e.ChecksChosen((CHECK,), found=True),
        e.BaselineTaken((diagnosis(5, 12),)),
        e.PhaseEnded("baseline", 0.9),
        e.PhaseStarted("work"),
        e.AttemptStarted(1, "script:/s.toml"),
        replied("I will fix the sign.", call),
        allowed(),
        returned("done\n"),
        e.ChecksRan(1, 1, (diagnosis(2, 15),), compared(3, 2, 15)),
        e.TurnEnded(1, 1, "abc", changed=True),
        replied("Finished?", step=2),
        e.FinishRefused(1, "2 tests still fail:\ntest_bad_3\ntest_bad_4"),
        e.ChecksRan(1, 3, (diagnosis(0, 17),), compared(5, 0, 17)),
        e.AttemptEnded(1, "proven", "Fixed the sign.", "abc", compared(5, 0, 17)),
        e.PhaseEnded("work", 4.0),
        e.ChangeMade("cloister/fix-1", "def", (FileChange("shop/cart.py", 2, 1),), "Fixed."),
        e.ChangeDelivered("/home/ann/shop", "cloister/fix-1"),
        e.SandboxClosed("s-1", "the run has what it needs"),
        e.RunFinished("proven", "Fixed the sign.", 1),
    )


def test_a_whole_run_reads_from_top_to_bottom() -> None:
    assert lines(whole_run()) == [
        "● r-0123456789ab  make the tests pass",
        "· repository /home/ann/shop",
        "✓ fetch  0.3 s",
        "· base 1a2b3c4d5e on main",
        "! 2 changed files are not committed and not part of the run.",
        "✓ template  1 min 02 s",
        "✓ create  0.1 s",
        "· sandbox s-1 · container · crun 1.8.1 · shares this machine's kernel · overlay store",
        "· check (found): python3 -m pytest -q",
        "✗ 5 failing, 12 passing before any change",
        "✓ baseline  0.9 s",
        "· model script:/s.toml",
        "I will fix the sign.",
        "▸ bash  sed -i s/-/+/ shop/cart.py",
        "  │ done",
        "✗ 5 failing → 2 failing (3 fixed)",
        "    still    test_bad_3",
        "    still    test_bad_4",
        "Finished?",
        "✗ not done yet: 2 tests still fail: test_bad_3 test_bad_4",
        "✓ 17 passing  (5 fixed)",
        "✓ work  4.0 s",
        "· sandbox s-1 closed: the run has what it needs",
        "",
        "✓ proven  Fixed the sign.",
        "  before    ✗ 5 failing",
        "  now       ✓ 17 passing  (5 fixed)",
        "  evidence  shown by test_bad_0 and 4 more: red on the base, green now",
        "  check     python3 -m pytest -q",
        "  change    1 file, +2 −1",
        "            shop/cart.py  +2 −1",
        "  branch    cloister/fix-1, in /home/ann/shop",
        "  spent     2 steps · 240 tokens (200 in, 40 out) · 28.0 s",
        "  model     scripted model: replies come from /s.toml",
        "  isolation container · crun 1.8.1 · shares this machine's kernel · overlay store",
        "  next      cloister diff r-0123456789ab",
        "            git switch cloister/fix-1",
    ]


def test_a_fork_and_a_warmed_template_each_say_where_the_base_was_checked() -> None:
    known = e.BaselineTaken((diagnosis(0, 2),), known=True)
    forked = NewRun("p", "/r", forked_from=ForkedFrom(RunId("r-1"), 7))
    where = [lines(told(e.RunAdmitted(request, "ann"), known))[2] for request in (NewRun("p", "/r"), forked)]
    assert where == [
        "· this commit was checked when its template was warmed",
        "· this commit was checked in r-1, which this run continues",
    ]


def test_a_sample_of_a_long_suite_is_one_line() -> None:
    [line] = lines(told(e.BaselineSampled((diagnosis(5, 12),))))
    assert line == "· of the tests the task is about, 5 failing, 12 passing before any change; the rest runs"


def test_a_run_that_was_not_delivered_says_how_to_apply_it() -> None:
    shown = lines(
        told(
            admitted(),
            e.RunClaimed("o-1", 1),
            e.ChangeMade("cloister/x", "def", (FileChange("a", 1, 0, "added"),), ""),
            e.RunFinished("stopped", "Stopped by ann."),
        )
    )
    assert shown[-7:] == [
        "■ stopped  Stopped by ann.",
        "  change    1 file, +1 −0",
        "            a  +1 −0  (added)",
        "  branch    cloister/x, kept with the run",
        "  spent     0 steps · 0 tokens (0 in, 0 out) · 2.0 s",
        "  next      cloister diff r-0123456789ab",
        "            cloister apply r-0123456789ab",
    ]


def test_a_run_that_failed_early_points_to_its_log() -> None:
    shown = lines(told(admitted(), e.RunFinished("failed", "There is no repository there.")))
    assert shown[2:] == [
        "",
        "✗ failed  There is no repository there.",
        "  change    none",
        "  spent     0 steps · 0 tokens (0 in, 0 out) · 0.0 s",
        "  next      cloister log r-0123456789ab",
    ]


def test_text_that_was_streamed_is_not_shown_again() -> None:
    shown = pieces(
        [
            *told(admitted()),
            e.ModelText(1, "I will "),
            e.ModelText(1, "look."),
            *told(replied("I will look.")),
        ]
    )
    assert shown[2:] == [Fragment("I will "), Fragment("look.")]


def test_what_a_slow_watcher_missed_of_a_text_comes_with_the_reply() -> None:
    rest = pieces([*told(admitted()), e.ModelText(1, "I will "), *told(replied("I will look."))])
    assert rest[2:] == [Fragment("I will "), Fragment("look.")]
    torn = pieces([*told(admitted()), e.ModelText(1, "look."), *told(replied("I will look."))])
    assert torn[2:] == [Fragment("look."), Line("I will look.", "said")]


def test_long_output_is_shown_by_its_beginning_and_its_end() -> None:
    text = "".join(f"line {number}\n" for number in range(1, 21))
    shown = lines(told(replied("", bash("seq 20")), allowed(), returned(text)))
    assert shown == [
        "▸ bash  seq 20",
        *(f"  │ line {number}" for number in range(1, 7)),
        "  │ … 11 more lines …",
        *(f"  │ line {number}" for number in range(18, 21)),
    ]


def test_live_output_is_shown_as_it_comes_and_only_once() -> None:
    items: list[e.Event | e.Delta] = [*told(replied("", bash("make")), allowed())]
    items += [e.CommandOutput(1, "c1", "out", "one\ntw"), e.CommandOutput(1, "c1", "err", "o\nthree")]
    shown = pieces(items)
    assert shown == [
        Line("▸ bash  make", "head"),
        Status("bash running"),
        Line("  │ one", "dim"),
        Status("bash running", output=("tw",)),
        Line("  │ two", "dim"),
        Status("bash running", output=("three",)),
    ]
    assert lines([*items, *told(returned("one\ntwo\nthree", ok=False, code=2, seconds=1.5))]) == [
        "▸ bash  make",
        "  │ one",
        "  │ two",
        "  │ three",
        "  └ exit 2 after 1.5 s",
    ]


def test_calls_with_the_same_id_in_two_replies_are_both_announced() -> None:
    shown = lines(told(replied("", bash("a")), allowed(), returned(""), replied("", bash("b")), allowed()))
    assert shown == ["▸ bash  a", "▸ bash  b"]


def test_output_of_a_check_moves_the_status_and_prints_no_line() -> None:
    shown = pieces(
        [*told(e.ChecksChosen((CHECK,), found=False)), e.CommandOutput(1, CHECK, "out", "....\n5 passed\n")]
    )
    assert shown == [
        Line(f"· check (given): {CHECK}", "dim"),
        Status(f"checking: {CHECK}", output=("5 passed",)),
    ]


def test_progress_is_one_line_and_then_a_moving_bar() -> None:
    shown = pieces(
        [
            *told(e.PhaseStarted("template")),
            e.Progress("template", 0.0, "asking the package sources"),
            e.Progress("template", 0.5, "unpacking git"),
            *told(e.PhaseEnded("template", 3.0)),
        ]
    )
    assert shown == [
        Status("preparing the template"),
        Line("· preparing the template: asking the package sources", "dim"),
        Status("template: asking the package sources", 0.0),
        Status("template: unpacking git", 0.5),
        Line("✓ template  3.0 s", "dim"),
        IDLE,
    ]


def test_an_ask_shows_what_is_asked_and_how_to_answer() -> None:
    ask = e.AskRaised("a-1", 1, "bash: git push", "git push origin main", 1_700_000_301.0)
    assert lines([*told(admitted()), e.Event(RUN, 9, 1_700_000_001.0, ask)])[2:] == [
        "? allow this? bash: git push",
        "  │ git push origin main",
        "    cloister log r-0123456789ab --after 8   shows all of it",
        "  Answer within 5 min 00 s; the default is deny",
        "    cloister answer r-0123456789ab a-1 allow|deny",
    ]
    assert lines(told(e.AskAnswered("a-1", "allow", "ann"))) == ["? a-1: allow by ann"]


def test_a_refused_action_and_a_refused_connection_are_said() -> None:
    shown = lines(
        told(
            replied("", bash("rm -rf /")),
            e.ActionDecided(1, "c1", "bash: rm -rf /", "deny", "host config.toml:3"),
            e.ConnectionDecided("s-1", "evil.example", 443, "deny", "no rule allows it"),
            e.ConnectionDecided("s-1", "packages.example.org", 443, "allow", "run"),
        )
    )
    assert shown == [
        "▸ bash  rm -rf /",
        "  ⊘ refused by the policy: bash: rm -rf / (host config.toml:3)",
        "  ⊘ connection to evil.example:443 refused (no rule allows it); allow it with --rule 'allow connect:evil.example:443'",
        "  → connection to packages.example.org:443",
    ]


def test_several_attempts_are_labelled() -> None:
    shown = lines(
        [
            *told(admitted(n=2), e.AttemptStarted(1, "m"), e.AttemptStarted(2, "m")),
            e.ModelText(1, "never shown by fragments"),
            *told(
                replied("First.", bash("a"), attempt=1),
                replied("Second.", attempt=2),
                allowed(attempt=1),
                e.ChecksRan(2, 1, (), compared(1, 0, 3)),
                e.AttemptEnded(1, "red", "Gave up.", "abc", compared(0, 1, 2)),
                e.AttemptEnded(2, "proven", "Fixed.", "abc", compared(1, 0, 3)),
            ),
        ]
    )
    assert shown[2:] == [
        "· [1] model m",
        "· [2] model m",
        "[1] First.",
        "[2] Second.",
        "[1] ▸ bash  a",
        "[2] ✓ 3 passing  (1 fixed)",
        "✗ attempt 1 ended red: Gave up.",
        "✓ attempt 2 ended proven: Fixed.",
    ]


def test_new_and_missing_tests_count_as_failing() -> None:
    worse = Comparison(new=("test_new",), missing=("test_gone",), still=("test_old",), passed=1)
    shown = lines(told(e.BaselineTaken((diagnosis(1, 2),)), e.ChecksRan(1, 1, (), worse)))
    assert shown == [
        "✗ 1 failing, 2 passing before any change",
        "✗ 1 failing → 3 failing (1 new, 1 missing)",
        "    new      test_new",
        "    missing  test_gone",
        "    still    test_old",
    ]


def test_what_interrupts_a_run_is_said() -> None:
    shown = lines(
        told(
            e.RunClaimed("o-2", 2),
            e.RunResumed(41),
            e.PromptReceived("use integers", "ann"),
            e.ModelFailed(1, "overloaded", "The provider is busy.", 2.0),
            e.ModelFailed(1, "auth", "The key is wrong."),
            e.ModelSwitched(1, "a:one", "b:two", "busy"),
            e.ModelChosen("c:three", "ann"),
            e.StopRequested("ann"),
        )
    )
    assert shown == [
        "↻ taken over: the process that drove this run has ended",
        "↻ resuming after event 41",
        "» ann: use integers",
        "! the model failed: The provider is busy. (trying again in 2.0 s)",
        "! the model failed: The key is wrong. (giving up)",
        "· continuing with b:two",
        "» ann switches to c:three",
        "■ ann asked the run to stop",
    ]


def test_nothing_a_guest_or_a_model_says_reaches_the_terminal_as_a_control() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\x00"
    call = ToolCall("c1", evil, {"command": evil})
    ask = e.AskRaised(evil, 1, evil, evil, 0.0)
    items: list[e.Event | e.Delta] = [
        *told(
            admitted(),
            e.BaseFixed(evil, evil, evil),
            e.PolicyFixed((evil, evil), (evil,)),
            e.ChecksChosen((evil,), found=True),
        ),
        e.ModelText(1, evil),
        e.Progress("template", None, evil),
        *told(replied(evil, call), allowed(), ask, returned(evil, ok=False), e.FinishRefused(1, evil)),
        e.CommandOutput(1, "c1", "out", evil),
        *told(
            e.ChecksRan(1, 1, (Diagnosis(evil, 1, 1.0, killed="time"),), Comparison(new=(evil,))),
            e.ChangeMade(evil, evil, (FileChange(evil, 1, 1),), evil),
            e.ChangeDelivered(evil, evil),
            e.RunFinished("red", evil),
        ),
    ]
    for piece in pieces(items):
        assert not any((ord(sign) < 32 and sign != "\n") or 0x7F <= ord(sign) < 0xA0 for sign in piece.text)
        assert "\u202e" not in piece.text


@given(st.lists(st.text(), max_size=8))
def test_any_stream_of_text_gives_clean_lines(parts: list[str]) -> None:
    items = [e.CommandOutput(1, "c1", "out", part) for part in parts]
    for line in lines([*told(replied("", bash("x")), allowed()), *items, *told(returned(""))]):
        assert "\n" not in line
        assert "\x1b" not in line


def test_the_words_of_a_log_are_lines_with_style_names_as_data() -> None:
    log = told(
        admitted(), e.RunClaimed("o-1", 1), replied("I look.", bash("ls")), allowed(), returned("a.py")
    )
    said = list(words(log, after=2))
    assert [(each.seq, [(line.text, line.style) for line in each.lines]) for each in said] == [
        (3, [("I look.", "said")]),
        (4, [("▸ bash  ls", "head")]),
        (5, [("  │ a.py", "dim")]),
    ]
    assert said == list(words(log))[2:]


def test_a_new_round_is_announced_and_its_first_owner_took_nothing_over() -> None:
    first = (admitted(), e.RunClaimed("o-1", 1), e.RunFinished("red", "No."))
    again = (e.RunContinued("bob", "review"), e.PromptReceived("rename it", "bob", "review"))
    log = told(*first, *again, e.RunClaimed("o-2", 2), e.RunClaimed("o-3", 3))
    assert [line.text for each in words(log, after=3) for line in each.lines] == [
        "● round 2: bob continues the run after a review comment",
        "» bob: rename it",
        "↻ taken over: the process that drove this run has ended",
    ]
