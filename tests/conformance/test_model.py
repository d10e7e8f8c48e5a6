"""Every model behind the seam keeps the seam's promises: the scripted one and each provider's wire."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest

from cloister.core.records import ToolCall
from cloister.model.api import Model
from cloister.model.providers import open_compatible, open_provider
from cloister.model.scripted import ScriptedModel, load_script
from cloister.testing.model_conformance import (
    check_cancelling,
    check_failure,
    check_leaving_early,
    check_reply,
)
from cloister.testing.model_server import Answer, ModelServer, open_model_server
from cloister.testing.model_wires import WIRES, Sent, SentCall, Wire

pytestmark = pytest.mark.anyio

KEY = "sk-test-0123456789abcdef"
KINDS = ("anthropic", "openai", "google", "compatible")

LIST = SentCall("call_1", "bash", ('{"comm', 'and": "l', 's -la"}'))
SHOW = SentCall("call_2", "bash", ('{"command":', ' "cat README.md"}'))
GREETING = Sent(text=("Hello, ", "I will ", "look."), calls=(LIST,), ending="tools")


@dataclass(frozen=True)
class Remote:
    """A provider's model and the server it talks to."""

    kind: str
    model: Model
    server: ModelServer
    wire: Wire


@asynccontextmanager
async def opened(kind: str, url: str) -> AsyncGenerator[Model]:
    if kind == "compatible":
        async with open_compatible("test-model", url=url + "/v1", key=KEY) as model:
            yield model
    else:
        served = url + "/v1" if kind == "openai" else url
        async with open_provider(kind, "test-model", key=KEY, url=served) as model:
            yield model


@pytest.fixture(params=KINDS)
async def remote(request: pytest.FixtureRequest) -> AsyncGenerator[Remote]:
    kind = str(request.param)
    async with open_model_server() as server, opened(kind, server.url) as model:
        yield Remote(kind, model, server, WIRES[kind])


def scripted(tmp_path: Path, text: str) -> ScriptedModel:
    path = tmp_path / "a.script.toml"
    path.write_text(text, encoding="utf-8")
    return ScriptedModel(load_script(path))


async def test_a_scripted_reply_keeps_the_promises(tmp_path: Path) -> None:
    model = scripted(
        tmp_path,
        """
        [[reply]]
        say = "Hello, I will look at the files and tell you what is there."
        calls = [{ tool = "bash", command = "ls" }, { tool = "bash", command = "pwd" }]
        """,
    )
    reply = await check_reply(model)
    assert [call.arguments for call in reply.calls] == [{"command": "ls"}, {"command": "pwd"}]
    await check_leaving_early(model)


async def test_a_scripted_model_that_takes_its_time_can_be_cancelled(tmp_path: Path) -> None:
    text = "word " * 100
    model = scripted(tmp_path, f'pace_seconds = 0.01\n[[reply]]\nsay = "{text}"\n')
    await check_cancelling(model)


async def test_a_scripted_failure_keeps_the_promises(tmp_path: Path) -> None:
    model = scripted(tmp_path, '[[reply]]\nfail = { code = "overloaded", say = "Let me", times = 9 }\n')
    failure = await check_failure(model)
    assert failure.code == "overloaded"
    assert failure.retryable


async def test_text_and_a_call_in_fragments_become_one_reply(remote: Remote) -> None:
    remote.server.say(remote.wire.reply(GREETING))
    reply = await check_reply(remote.model)
    assert reply.text == "Hello, I will look."
    assert [(call.name, call.arguments) for call in reply.calls] == [("bash", {"command": "ls -la"})]
    assert reply.stop == "tools"
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (100, 20, 40)


async def test_two_calls_at_once_stay_two_calls(remote: Remote) -> None:
    remote.server.say(remote.wire.reply(Sent(calls=(LIST, SHOW), ending="tools")))
    reply = await check_reply(remote.model)
    assert [call.arguments for call in reply.calls] == [{"command": "ls -la"}, {"command": "cat README.md"}]
    assert reply.text == ""


async def test_a_reply_of_text_alone_ends_the_turn(remote: Remote) -> None:
    remote.server.say(remote.wire.reply(Sent(text=("Done.",))))
    reply = await check_reply(remote.model)
    assert (reply.text, reply.calls, reply.stop) == ("Done.", (), "end")


async def test_a_reply_that_hit_its_limit_says_so(remote: Remote) -> None:
    remote.server.say(remote.wire.reply(Sent(text=("And so on and",), ending="length")))
    assert (await check_reply(remote.model)).stop == "length"


async def test_a_refusal_is_a_failure(remote: Remote) -> None:
    remote.server.say(remote.wire.reply(Sent(text=("I",), ending="refused")))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("refused", False)


async def test_an_empty_reply_is_a_failure_that_may_pass(remote: Remote) -> None:
    remote.server.say(remote.wire.reply(Sent()))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("bad_reply", True)


async def test_a_refused_key_names_the_variable_and_not_the_key(remote: Remote) -> None:
    kind = "UNAUTHENTICATED" if remote.kind == "google" else "authentication_error"
    remote.server.say(remote.wire.error(401, kind, f"Incorrect API key provided: {KEY}"))
    failure = await check_failure(remote.model, secret=KEY)
    assert (failure.code, failure.retryable) == ("auth", False)
    assert "_KEY" in failure.message


async def test_an_error_that_quotes_the_key_is_shown_without_it(remote: Remote) -> None:
    kind = "INVALID_ARGUMENT" if remote.kind == "google" else "invalid_request_error"
    remote.server.say(remote.wire.error(400, kind, f"Bad header x-key: {KEY} in the request"))
    failure = await check_failure(remote.model, secret=KEY)
    assert (failure.code, failure.retryable) == ("bad_request", False)
    assert "Bad header" in failure.message


async def test_a_rate_limit_carries_the_wait_that_was_asked_for(remote: Remote) -> None:
    kind = "RESOURCE_EXHAUSTED" if remote.kind == "google" else "rate_limit_error"
    answer = remote.wire.error(429, kind, "Slow down.")
    remote.server.say(replace(answer, headers={**answer.headers, "retry-after": "7"}))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable, failure.retry_seconds) == ("rate_limit", True, 7.0)
    assert len(remote.server.asked) == 1, "the SDK retried behind our back"


@pytest.mark.parametrize("status", [500, 502, 503, 529])
async def test_a_server_in_trouble_may_be_asked_again(remote: Remote, status: int) -> None:
    kind = "UNAVAILABLE" if remote.kind == "google" else "overloaded_error"
    remote.server.say(remote.wire.error(status, kind, "We are busy."))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("overloaded", True)
    assert len(remote.server.asked) == 1, "the SDK retried behind our back"


async def test_an_unknown_model_is_not_asked_again(remote: Remote) -> None:
    kind = "NOT_FOUND" if remote.kind == "google" else "not_found_error"
    remote.server.say(remote.wire.error(404, kind, "There is no such model."))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("bad_request", False)


async def test_a_conversation_that_is_too_long_is_told_apart(remote: Remote) -> None:
    kind, message = {
        "anthropic": ("invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum"),
        "google": (
            "INVALID_ARGUMENT",
            "The input token count (2000000) exceeds the maximum number of tokens allowed (1000000).",
        ),
    }.get(remote.kind, ("context_length_exceeded", "This model's maximum context length is 8192 tokens."))
    remote.server.say(remote.wire.error(400, kind, message))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("context_too_long", False)


async def test_a_connection_that_breaks_in_the_middle_is_a_failure(remote: Remote) -> None:
    whole = remote.wire.reply(GREETING)
    remote.server.say(replace(whole, pieces=whole.pieces[:3], end=False))
    failure = await check_failure(remote.model)
    assert failure.code in ("network", "bad_reply")
    assert failure.retryable


async def test_a_stream_that_ends_politely_but_too_early_is_a_failure(remote: Remote) -> None:
    whole = remote.wire.reply(GREETING)
    remote.server.say(replace(whole, pieces=whole.pieces[:3]))
    failure = await check_failure(remote.model)
    assert failure.code in ("network", "bad_reply")
    assert failure.retryable


async def test_an_event_that_is_not_json_is_a_failure(remote: Remote) -> None:
    whole = remote.wire.reply(GREETING)
    broken = whole.pieces[2][: len(whole.pieces[2]) // 2] + b"\n\n"
    remote.server.say(replace(whole, pieces=(*whole.pieces[:2], broken)))
    failure = await check_failure(remote.model)
    assert failure.code in ("network", "bad_reply")
    assert failure.retryable


async def test_a_page_instead_of_a_stream_is_a_failure(remote: Remote) -> None:
    remote.server.say(Answer(200, {"content-type": "text/html"}, (b"<html>Welcome to the proxy</html>",)))
    failure = await check_failure(remote.model)
    assert failure.code in ("network", "bad_reply")


async def test_nobody_at_the_address_is_a_network_failure() -> None:
    async with open_model_server() as server:
        url = server.url
    for kind in KINDS:
        async with opened(kind, url) as model:
            failure = await check_failure(model, secret=KEY)
        assert (failure.code, failure.retryable) == ("network", True), kind


async def test_leaving_a_reply_early_is_fine(remote: Remote) -> None:
    remote.server.say(*[remote.wire.reply(GREETING)] * 3)
    await check_leaving_early(remote.model)


async def test_cancelling_a_reply_hangs_up(remote: Remote) -> None:
    whole = remote.wire.reply(GREETING)
    remote.server.say(replace(whole, pieces=whole.pieces[:4], end=False, hold=True))
    await check_cancelling(remote.model)
    with anyio.fail_after(10):
        await remote.server.left.wait()


@pytest.mark.parametrize("remote", ["anthropic", "openai", "compatible"], indirect=True)
async def test_arguments_that_are_no_object_arrive_marked_as_invalid(remote: Remote) -> None:
    # Gemini is not here: it sends arguments as an object, never as text.
    cut = SentCall("call_1", "bash", ('{"command": "ls',))
    remote.server.say(remote.wire.reply(Sent(text=("Look:",), calls=(cut,), ending="length")))
    reply = await check_reply(remote.model)
    assert reply.calls == (ToolCall("call_1", "bash", {"_invalid": '{"command": "ls'}),)
    assert reply.stop == "length"
