"""The contract of `Model`, as checks that raise `AssertionError` with one sentence.

Call them from a test with a model that is about to answer, to fail, or to talk for a while.
"""

from collections.abc import Sequence

import anyio

from cloister.model.api import Failure, Model, Reply, Request, TextDelta, ToolSpec, UserMessage

ANSWER_SECONDS = 30.0

REQUEST = Request(
    system="You are a careful engineer.",
    messages=(UserMessage("Say hello and list the files."),),
    tools=(
        ToolSpec(
            "bash",
            "Run a command.",
            {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        ),
    ),
)
"""A request that any model accepts."""

Item = TextDelta | Reply | Failure


async def items_of(model: Model, request: Request = REQUEST) -> list[Item]:
    """Everything a model yields for one request; an exception is a broken promise."""
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            async with model.stream(request) as items:
                return [item async for item in items]
    except Exception as error:
        raise AssertionError(
            f"{model.name} raised {type(error).__name__} instead of yielding a Failure"
        ) from error


async def check_reply(model: Model, request: Request = REQUEST) -> Reply:
    """The model answers: text, then exactly one reply whose text is what was streamed."""
    items = await items_of(model, request)
    last = _check_order(model, items)
    if isinstance(last, Failure):
        raise AssertionError(f"{model.name} failed: {last.code}: {last.message}")
    streamed = "".join(item.text for item in items if isinstance(item, TextDelta))
    _require(streamed == last.text, f"{model.name} streamed {streamed!r} and replied {last.text!r}")
    ids = [call.id for call in last.calls]
    _require(all(ids), f"{model.name} gave a call without an id")
    _require(len(set(ids)) == len(ids), f"{model.name} gave two calls one id")
    _require(last.stop != "tools" or bool(ids), f"{model.name} stopped for tools and called none")
    _require(last.usage.input_tokens > 0, f"{model.name} reported no input tokens")
    _require(
        last.usage.cached_tokens <= last.usage.input_tokens,
        f"{model.name} read more from a cache than it was sent",
    )
    return last


async def check_failure(model: Model, *, secret: str | None = None, request: Request = REQUEST) -> Failure:
    """The model fails: perhaps text, then exactly one failure with a message that contains no secret."""
    last = _check_order(model, await items_of(model, request))
    if isinstance(last, Reply):
        raise AssertionError(f"{model.name} was meant to fail and replied")
    _require(bool(last.message.strip()), f"{model.name} failed without a word")
    _require("\n" not in last.message, f"{model.name} failed with more than one line")
    _require(secret is None or secret not in last.message, f"{model.name} told the secret in a failure")
    wait = last.retry_seconds
    _require(wait is None or wait >= 0, f"{model.name} asks to wait for {wait} seconds")
    return last


async def check_leaving_early(model: Model, request: Request = REQUEST) -> None:
    """The caller can leave the block at once, after the first item, or by an error of its own."""
    with anyio.fail_after(ANSWER_SECONDS):
        async with model.stream(request):
            pass
        async with model.stream(request) as items:
            await anext(items)
        try:
            async with model.stream(request) as items:
                await anext(items)
                raise _Own
        except _Own:
            return
    raise AssertionError(f"{model.name} swallowed the caller's own error")


async def check_cancelling(model: Model, request: Request = REQUEST) -> None:
    """Cancelling an endless reply ends the call."""
    with anyio.fail_after(ANSWER_SECONDS), anyio.CancelScope() as scope:
        async with model.stream(request) as items:
            await anext(items)
            scope.cancel()
            async for _ in items:
                pass
    _require(scope.cancelled_caught, f"{model.name} went on after it was cancelled")


class _Own(Exception):
    """An error of the caller."""


def _check_order(model: Model, items: Sequence[Item]) -> Reply | Failure:
    _require(bool(items), f"{model.name} yielded nothing")
    *before, last = items
    _require(
        all(isinstance(item, TextDelta) for item in before),
        f"{model.name} went on after its Reply or Failure",
    )
    if isinstance(last, TextDelta):
        raise AssertionError(f"{model.name} ended without a Reply or Failure")
    return last


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise AssertionError(otherwise)
