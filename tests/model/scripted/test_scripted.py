"""The scripted model follows its script, from the conversation alone, and says where a run leaves it."""

from pathlib import Path
from textwrap import dedent

import pytest

from cloister.core.errors import UserError
from cloister.core.requests import ToolCall, Usage
from cloister.model.api import (
    AssistantMessage,
    Failure,
    Message,
    Model,
    Reply,
    Request,
    TextDelta,
    ToolMessage,
    UserMessage,
)
from cloister.model.scripted import ScriptedModel, load_script

pytestmark = pytest.mark.anyio

FIX = r"""
[[reply]]
name = "test"
say = "I run the tests."
calls = [{ tool = "bash", command = "pytest -q" }]
branch = [
    { when = '^(?P<count>\d+) failed in (?P<file>\S+)$', goto = "fix" },
    { when = 'passed', goto = "done" },
]

[[reply]]
name = "fix"
say = "{{count}} fail in {{file}}."
goto = "test"
calls = [{ tool = "read", path = "{{file}}", limit = "{{count:int}}", more = [{ of = "{{file}}!" }, true] }]

[[reply]]
name = "done"
calls = [{ tool = "finish", summary = "Done after {{count}}." }]
"""


def model_of(tmp_path: Path, text: str) -> ScriptedModel:
    path = tmp_path / "a.script.toml"
    path.write_text(dedent(text), encoding="utf-8")
    return ScriptedModel(load_script(path))


async def ask(model: Model, *messages: Message) -> Reply | Failure:
    async with model.stream(Request("system", messages, ())) as items:
        *_, last = [item async for item in items]
    assert not isinstance(last, TextDelta)
    return last


class Talk:
    """A conversation as the loop keeps it, with or without what the model wants back."""

    def __init__(self, *, marks: bool = True) -> None:
        self.messages: list[Message] = [UserMessage("Fix it.")]
        self.marks = marks

    async def next(self, model: Model, observation: str) -> Reply:
        reply = await ask(model, *self.messages)
        assert isinstance(reply, Reply), reply
        self.messages.append(AssistantMessage(reply.text, reply.calls, reply.opaque if self.marks else None))
        self.messages.extend(ToolMessage(call.id, call.name, observation) for call in reply.calls)
        if not reply.calls:
            self.messages.append(UserMessage(observation))
        return reply


async def test_it_branches_on_the_observation_and_loops_back(tmp_path: Path) -> None:
    model, talk = model_of(tmp_path, FIX), Talk()
    observations = ("x\n3 failed in a.py\n", "ok", "1 failed in b.py", "ok", "9 passed", "")
    replies = [await talk.next(model, observation) for observation in observations]
    assert [reply.text for reply in replies] == [
        "I run the tests.",
        "3 fail in a.py.",
        "I run the tests.",
        "1 fail in b.py.",
        "I run the tests.",
        "",
    ]
    assert replies[1].calls[0].arguments == {"path": "a.py", "limit": 3, "more": [{"of": "a.py!"}, True]}
    assert replies[-1].calls == (ToolCall("call-6-1", "finish", {"summary": "Done after 1."}),)


@pytest.mark.parametrize("marks", [True, False])
async def test_another_process_resumes_where_the_first_was_killed(tmp_path: Path, marks: bool) -> None:
    observations = ("3 failed in a.py", "ok", "1 failed in b.py", "ok", "9 passed", "")
    steady, restarted = Talk(marks=marks), Talk(marks=marks)
    one = model_of(tmp_path, FIX)
    for observation in observations:
        expected = await steady.next(one, observation)
        assert await restarted.next(model_of(tmp_path, FIX), observation) == expected


async def test_shortened_history_does_not_lose_its_place(tmp_path: Path) -> None:
    model, talk = model_of(tmp_path, FIX), Talk()
    for observation in ("3 failed in a.py", "ok", "1 failed in b.py"):
        await talk.next(model, observation)
    short = [UserMessage("Fix it. (Earlier turns left out.)"), *talk.messages[-2:]]
    reply = await ask(model, *short)
    assert isinstance(reply, Reply)
    assert reply.text == "1 fail in b.py."
    assert reply.calls[0].id == "call-4-1"


async def test_everything_since_the_last_reply_is_one_observation(tmp_path: Path) -> None:
    model = model_of(
        tmp_path,
        r"""
        [[reply]]
        expect = 'Fix it'
        calls = [{ tool = "bash", command = "a" }, { tool = "bash", command = "b" }]
        [[reply]]
        expect = '(?s)first.*second.*hurry up'
        say = "Yes."
        """,
    )
    talk = Talk()
    reply = await talk.next(model, "unused")
    del talk.messages[-2:]
    talk.messages += [
        ToolMessage(reply.calls[0].id, "bash", "the first"),
        ToolMessage(reply.calls[1].id, "bash", "the second"),
        UserMessage("hurry up"),
    ]
    assert (await talk.next(model, "")).text == "Yes."


async def test_no_matching_branch_fails_with_the_place_and_the_observation(tmp_path: Path) -> None:
    model, talk = model_of(tmp_path, FIX), Talk()
    await talk.next(model, "x" * 9_000 + "\x1b[31mbash: pytest: command not found\x1b[0m\n")
    failure = await ask(model, *talk.messages)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable) == ("off_script", False)
    assert failure.message.startswith(
        f'script {tmp_path}/a.script.toml: after reply 1 ("test") no branch matches'
    )
    assert failure.message.endswith("bash: pytest: command not found")
    assert "\x1b" not in failure.message
    assert len(failure.message) < 700


async def test_asking_after_the_end_is_off_the_script(tmp_path: Path) -> None:
    model, talk = model_of(tmp_path, '[[reply]]\nsay = "Bye."\n'), Talk()
    await talk.next(model, "Come back.")
    failure = await ask(model, *talk.messages)
    assert isinstance(failure, Failure)
    assert failure.message.endswith(
        "after reply 1 the script is over, and the observation ends with: Come back."
    )


async def test_an_expectation_that_is_not_met_is_off_the_script(tmp_path: Path) -> None:
    model = model_of(tmp_path, '[[reply]]\nsay = "Yes."\nexpect = "please"\n')
    failure = await ask(model, UserMessage("Now!"))
    assert isinstance(failure, Failure)
    assert "reply 1 expects 'please', and the observation ends with: Now!" in failure.message


async def test_a_group_that_nothing_captured_yet_is_off_the_script(tmp_path: Path) -> None:
    text = "[[reply]]\nsay = '{{n}}'\n[[reply]]\nsay = ''\nexpect = '(?P<n>x)'\n"
    failure = await ask(model_of(tmp_path, text), UserMessage("Go."))
    assert isinstance(failure, Failure)
    assert "uses {{n}}, which nothing has captured yet" in failure.message


async def test_a_number_that_is_none_is_off_the_script(tmp_path: Path) -> None:
    text = "[[reply]]\nexpect = '(?P<n>\\w+)'\ncalls = [{ tool = 'read', line = '{{n:int}}' }]\n"
    failure = await ask(model_of(tmp_path, text), UserMessage("seven"))
    assert isinstance(failure, Failure)
    assert "needs a whole number for {{n:int}}, not 'seven'" in failure.message


async def test_a_script_cut_short_under_a_run_is_noticed(tmp_path: Path) -> None:
    talk = Talk()
    model = model_of(tmp_path, FIX)
    for observation in ("1 failed in a.py", "ok"):
        await talk.next(model, observation)
    failure = await ask(model_of(tmp_path, '[[reply]]\nsay = "Short."\n'), *talk.messages)
    assert isinstance(failure, Failure)
    assert failure.code == "off_script"
    assert "it was changed after the run began" in failure.message


async def test_a_failure_on_purpose_comes_as_often_as_it_should(tmp_path: Path) -> None:
    model = model_of(
        tmp_path,
        """
        [[reply]]
        name = "again"
        say = "Here."
        goto = "again"
        fail = { code = "rate_limit", times = 2, retry_seconds = 0.25, message = "Slow down." }
        """,
    )
    prompt = UserMessage("Go.")
    expected = Failure("rate_limit", "Slow down.", retryable=True, retry_seconds=0.25)
    assert [await ask(model, prompt), await ask(model, prompt)] == [expected, expected]
    reply = await ask(model, prompt)
    assert isinstance(reply, Reply)
    said = AssistantMessage(reply.text, reply.calls, reply.opaque)
    assert await ask(model, prompt, said, UserMessage("More.")) == expected, "each time it comes up"


async def test_failures_are_retryable_by_kind_unless_the_script_says_otherwise(tmp_path: Path) -> None:
    for code, told, expected in (
        ("auth", "", False),
        ("network", "", True),
        ("auth", ", retryable = true", True),
    ):
        model = model_of(tmp_path, f'[[reply]]\nfail = {{ code = "{code}"{told} }}\n')
        failure = await ask(model, UserMessage("Go."))
        assert isinstance(failure, Failure)
        assert failure.retryable is expected


async def test_usage_and_stop_come_from_the_script_or_an_estimate(tmp_path: Path) -> None:
    said = await ask(
        model_of(tmp_path, '[[reply]]\nsay = ""\ninput_tokens = 0\noutput_tokens = 5\nstop = "length"\n'),
        UserMessage("Go."),
    )
    assert isinstance(said, Reply)
    assert (said.usage, said.stop) == (Usage(0, 5), "length")
    model = model_of(tmp_path, '[[reply]]\nsay = "Yes."\n')
    short, long = await ask(model, UserMessage("Go.")), await ask(model, UserMessage("Go. " * 1_000))
    assert isinstance(short, Reply)
    assert isinstance(long, Reply)
    assert 900 < long.usage.input_tokens - short.usage.input_tokens < 1_100
    assert short.stop == "end"


async def test_text_is_streamed_in_several_pieces_that_lose_nothing(tmp_path: Path) -> None:
    text = "  Two  spaces,\n\nnew lines and a-very-long-word-that-is-not-split-anywhere.  "
    path = tmp_path / "a.toml"
    path.write_text(f"[[reply]]\nsay = '''{text}'''\n", encoding="utf-8")
    async with ScriptedModel(load_script(path)).stream(Request("", (), ())) as items:
        pieces = [item.text async for item in items if isinstance(item, TextDelta)]
    assert len(pieces) >= 2
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (r"\{{n}}", "{{n}}"),
        (r"\{{unknown}} and {{n}}", "{{unknown}} and 7"),
        (r"\{{n:int}}", "{{n:int}}"),
        (r"\{{{n}}}", "{{{n}}}"),
        (r"{\{{n}}}", "{{{n}}}"),
        ("{{{n}}}", "{7}"),
        (r"\\{{n}}", r"\7"),
        (r"\\\{{n}}", r"\{{n}}"),
        (r"\\\\{{n}}{{n}}\{{n}}", r"\\77{{n}}"),
        (r"a\b {{ n }} \{{ n }} \{x} {{", r"a\b {{ n }} \{{ n }} \{x} {{"),
    ],
)
async def test_a_backslash_makes_a_placeholder_plain_text(tmp_path: Path, written: str, said: str) -> None:
    text = f"""
        [[reply]]
        expect = '(?P<n>\\d)'
        say = '{written}'
        calls = [{{ tool = "write", text = '{written}', more = ['{written}'] }}]
    """

    reply = await ask(model_of(tmp_path, text), UserMessage("7"))

    assert isinstance(reply, Reply)
    assert reply.text == said
    assert reply.calls[0].arguments == {"text": said, "more": [said]}


def test_the_error_of_an_unknown_placeholder_shows_the_escape(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"for the text itself, write \\\{\{title\}\}"):
        model_of(tmp_path, "[[reply]]\nsay = '<h1>{{title}}</h1>'\n")
