"""Every model behind the seam keeps the seam's promises: the scripted one and each provider's wire."""

import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace as replace_field
from tests.model.provider_server import Answer, ModelServer, open_model_server
from tests.model.wires import EVENT_STREAM, WIRES, Sent, SentCall, Wire
from tests.whole.conformance.suites.model import (
    REQUEST,
    check_cancelling,
    check_failure,
    check_leaving_early,
    check_reply,
    items_of,
)

from cloister.core import limits
from cloister.core.requests import ToolCall
from cloister.model.api import AssistantMessage, Message, Model, Reply, Request, ToolMessage
from cloister.model.catalog import CATALOG, Amazon
from cloister.model.remote.providers import open_remote
from cloister.model.remote.wire_formats import Endpoint
from cloister.model.scripted import ScriptedModel, load_script

pytestmark = pytest.mark.anyio

KEY = "sk-test-0123456789abcdef"
KINDS = tuple(WIRES)
SUFFIX = {"openai": "/v1", "openai-responses": "/v1", "compatible": "/v1"}

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

    def failing(self, status: int, message: str) -> Answer:
        """An error as this API words it."""
        return self.wire.error(status, self.wire.errors.get(status, "overloaded_error"), message)


@asynccontextmanager
async def opened(kind: str, url: str) -> AsyncGenerator[Model]:
    amazon = Amazon("us-east-1", "AKIATEST", KEY) if kind == "bedrock" else None
    key = KEY if amazon is None else None
    endpoint = Endpoint(kind, "test-model", url + SUFFIX.get(kind, ""), key, amazon)
    async with open_remote(endpoint) as model:
        yield model


def needs(remote: Remote, what: str) -> None:
    """Skip, by name, what an API has no word for."""
    if what in remote.wire.lacks:
        pytest.skip(f"{remote.kind} has no {what}")


@pytest.fixture(params=KINDS)
async def remote(request: pytest.FixtureRequest) -> AsyncGenerator[Remote]:
    kind = str(request.param)
    async with open_model_server() as server, opened(kind, server.url) as model:
        yield Remote(kind, model, server, WIRES[kind])


def scripted(tmp_path: Path, text: str) -> ScriptedModel:
    path = tmp_path / "a.script.toml"
    path.write_text(text, encoding="utf-8")
    return ScriptedModel(load_script(path))


def conversation(*messages: Message) -> Request:
    return replace_field(REQUEST, messages=(*REQUEST.messages, *messages))


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
    needs(remote, "refused")
    remote.server.say(remote.wire.reply(Sent(text=("I",), ending="refused")))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("refused", False)
    assert failure.usage is not None
    assert failure.usage.input_tokens == 100, "a refusal costs what any reply costs"


async def test_an_empty_reply_is_a_failure_that_may_pass(remote: Remote) -> None:
    remote.server.say(remote.wire.reply(Sent()))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("bad_reply", True)


async def test_a_refused_key_names_the_variable_and_not_the_key(remote: Remote) -> None:
    remote.server.say(remote.failing(401, f"Incorrect API key provided: {KEY}"))
    failure = await check_failure(remote.model, secret=KEY)
    assert (failure.code, failure.retryable) == ("auth", False)
    assert CATALOG[remote.kind].key_variable in failure.message


async def test_an_error_that_quotes_the_key_is_shown_without_it(remote: Remote) -> None:
    remote.server.say(remote.failing(400, f"Bad header x-key: {KEY} in the request"))
    failure = await check_failure(remote.model, secret=KEY)
    assert (failure.code, failure.retryable) == ("bad_request", False)
    assert "Bad header" in failure.message


async def test_a_rate_limit_carries_the_wait_that_was_asked_for(remote: Remote) -> None:
    answer = remote.failing(429, "Slow down.")
    remote.server.say(replace(answer, headers={**answer.headers, "retry-after": "7"}))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable, failure.retry_seconds) == ("rate_limit", True, 7.0)
    assert failure.usage is None, "nothing was begun"
    assert len(remote.server.asked) == 1, "the SDK retried behind our back"


async def test_the_wait_may_be_a_date_and_nonsense_is_no_wait(remote: Remote) -> None:
    answer = remote.failing(429, "Slow down.")
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    waits: list[float | None] = []
    for said in (later, "-5", "nan", "inf", "soon"):
        remote.server.say(replace(answer, headers={**answer.headers, "retry-after": said}))
        failure = await check_failure(remote.model)
        assert failure.code == "rate_limit"
        waits.append(failure.retry_seconds)
    assert waits[0] is not None
    assert 30 < waits[0] <= 90
    assert waits[1:] == [None] * 4


async def test_a_server_in_trouble_may_be_asked_again(remote: Remote) -> None:
    for asked, status in enumerate((500, 502, 503, 529), start=1):
        remote.server.say(remote.failing(status, "We are busy."))
        failure = await check_failure(remote.model)
        assert (failure.code, failure.retryable) == ("overloaded", True), status
        assert len(remote.server.asked) == asked, "the SDK retried behind our back"


async def test_an_unknown_model_is_not_asked_again(remote: Remote) -> None:
    remote.server.say(remote.failing(404, "There is no such model."))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("bad_request", False)


async def test_conversation_that_is_too_long_has_its_own_failure_code(remote: Remote) -> None:
    remote.server.say(remote.wire.error(400, *remote.wire.too_long))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("context_too_long", False)


async def test_a_connection_that_breaks_in_the_middle_is_a_failure(remote: Remote) -> None:
    whole = remote.wire.reply(GREETING)
    remote.server.say(replace(whole, pieces=whole.pieces[:3], end=False))
    failure = await check_failure(remote.model)
    assert failure.code in ("network", "bad_reply")
    assert failure.retryable
    assert failure.usage is not None, "what there was of it was made, and somebody pays for it"


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


async def test_unreachable_address_is_a_network_failure() -> None:
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
    with anyio.fail_after(60):
        await remote.server.left.wait()


async def test_arguments_that_are_no_object_arrive_marked_as_invalid(remote: Remote) -> None:
    needs(remote, "fragments")
    cut = SentCall("call_1", "bash", ('{"command": "ls',))
    remote.server.say(remote.wire.reply(Sent(text=("Look:",), calls=(cut,), ending="length")))
    reply = await check_reply(remote.model)
    assert reply.calls == (ToolCall("call_1", "bash", {"_invalid": '{"command": "ls'}),)
    assert reply.stop == "length"


async def test_two_calls_with_one_id_are_distinguished(remote: Remote) -> None:
    needs(remote, "repeated ids")
    remote.server.say(
        remote.wire.reply(Sent(calls=(LIST, replace(SHOW, id=LIST.id)), ending="tools")),
        remote.wire.reply(Sent(text=("Done.",))),
    )
    reply = await check_reply(remote.model)
    results = [ToolMessage(call.id, call.name, f"result {at}") for at, call in enumerate(reply.calls)]
    said = AssistantMessage(reply.text, reply.calls, reply.opaque)
    await check_reply(remote.model, conversation(said, *results))
    body = remote.server.asked[-1].body.decode()
    assert body.index("result 0") < body.index("result 1")
    assert all(body.count(f'"{call.id}"') == 2 for call in reply.calls), "each call, each result"


async def test_a_call_with_an_impossible_name_can_be_sent_back(remote: Remote) -> None:
    """Providers refuse a conversation with a name in it that no tool could have."""
    odd = (SentCall("call_1", "functions.bash<|x|>", ("{}",)), SentCall("call_2", "", ("{}",)))
    remote.server.say(
        remote.wire.reply(Sent(calls=odd, ending="tools")), remote.wire.reply(Sent(text=("Done.",)))
    )
    reply = await check_reply(remote.model)
    results = [ToolMessage(call.id, call.name, "There is no such tool.") for call in reply.calls]
    said = AssistantMessage(reply.text, reply.calls, reply.opaque)
    await check_reply(remote.model, conversation(said, *results))
    assert [call.name for call in reply.calls] == ["functions_bash__x__", "nameless"]
    assert "<|x|>" not in remote.server.asked[-1].body.decode()


async def test_a_reply_without_end_is_not_listened_to_forever(remote: Remote) -> None:
    piece = "and so on " * 100_000
    whole = remote.wire.reply(Sent(text=(piece,) * 12))
    remote.server.say(replace(whole, pieces=whole.pieces[:-3], hold=True))
    failure = await check_failure(remote.model)
    assert (failure.code, failure.retryable) == ("bad_reply", False)
    assert failure.usage is not None


async def test_a_character_that_was_cut_in_two_is_put_together_and_half_a_one_is_no_failure(
    remote: Remote,
) -> None:
    if remote.kind in ("bedrock", "mistral"):
        pytest.skip(f"{remote.kind}'s own client reads no half characters")
    call = SentCall("call_1", "bash", ('{"command": "echo HIGH"}',))
    whole = remote.wire.reply(
        Sent(text=("It is HIGH", "LOW. HIGH", " And LOW"), calls=(call,), ending="tools")
    )
    halves = [piece.replace(b"HIGH", rb"\ud83d").replace(b"LOW", rb"\ude00") for piece in whole.pieces]
    remote.server.say(replace(whole, pieces=tuple(halves)))
    reply = await check_reply(remote.model)
    assert reply.text == "It is \U0001f600. \ufffd And \ufffd"
    assert len(reply.calls) == 1
    said = AssistantMessage(reply.text, reply.calls, reply.opaque)
    remote.server.say(remote.wire.reply(Sent(text=("Ok.",))))
    await check_reply(remote.model, conversation(said, ToolMessage("call_1", "bash", "done")))


@pytest.mark.parametrize("status", [200, 500])
async def test_a_line_without_end_is_not_read_forever(remote: Remote, status: int) -> None:
    if remote.kind == "bedrock":
        pytest.skip("bedrock has a client of its own, which bounds each frame")
    endless = Answer(status, EVENT_STREAM, (b"data: ", *(b"x" * 40_000 for _ in range(5))), hold=True)
    remote.server.say(endless)
    url = remote.server.url + SUFFIX.get(remote.kind, "")
    with anyio.fail_after(20):
        async with open_remote(Endpoint(remote.kind, "test-model", url, KEY), 100_000) as model:
            failure = await check_failure(model)
    assert failure.code == "bad_reply", failure.message


async def test_a_packed_reply_is_not_unpacked(remote: Remote) -> None:
    if remote.kind == "bedrock":
        pytest.skip("bedrock has a client of its own")
    whole = remote.wire.reply(GREETING)
    packed = gzip.compress(b"".join(whole.pieces))
    remote.server.say(replace(whole, headers={**whole.headers, "content-encoding": "gzip"}, pieces=(packed,)))
    assert (await check_failure(remote.model)).code in ("bad_reply", "network")
    assert remote.server.asked[-1].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("said", [(-5, 0, -7), (10**30, 0, 10**19), (10, 500, 5)])
async def test_nonsense_about_what_a_reply_took_is_no_number_that_anybody_counts_with(
    remote: Remote, said: tuple[int, int, int]
) -> None:
    into, cached, out = said
    remote.server.say(
        remote.wire.reply(Sent(text=("Ok.",), input_tokens=into, cached_tokens=cached, output_tokens=out))
    )
    *_, reply = await items_of(remote.model, REQUEST)
    assert isinstance(reply, Reply), reply
    usage = reply.usage
    assert 0 <= usage.cached_tokens <= usage.input_tokens <= limits.CALL_TOKENS
    assert 0 <= usage.output_tokens <= limits.CALL_TOKENS


async def test_a_huge_reply_arrives_whole(remote: Remote) -> None:
    piece = "All work and no play makes a dull reply. " * 100
    remote.server.say(remote.wire.reply(Sent(text=(piece,) * 500)))
    reply = await check_reply(remote.model)
    assert reply.text == piece * 500
