"""Texts as vectors, from a server with OpenAI's `/embeddings`. Nothing is sent unless the settings name a model for it."""

from collections.abc import Sequence

import anyio
import httpx2
import msgspec

from cloister.core.errors import OutsideError, UserError
from cloister.core.text import one_line
from cloister.model.catalog import CATALOG
from cloister.model.names import Access, choose
from cloister.model.remote.failures import EndlessBody, as_data, bound, sentence

AT_ONCE = 64
"""Texts of one request."""
DIMENSIONS = 8_192
SECONDS = 60.0
_BODY_BYTES = 33_554_432
_WIRES = ("chat", "responses", "mistral")


class _Vector(msgspec.Struct, frozen=True):
    embedding: tuple[float, ...]
    index: int


class _Answer(msgspec.Struct, frozen=True):
    data: tuple[_Vector, ...]


async def embed(name: str, access: Access, texts: Sequence[str]) -> list[tuple[float, ...]]:
    """The vector of each text, at most `AT_ONCE`.

    Raises `UserError` as `choose`, also for a provider without embeddings, and `OutsideError` (`no_embeddings`).
    """
    kind, _, model = choose(name, access).partition(":")
    url, key = access.url_of(kind), access.keys.get(kind)
    if kind not in CATALOG or CATALOG[kind].wire not in _WIRES or url is None:
        raise UserError(
            "unknown_model",
            f"{one_line(name, 100)} has no embeddings: name a model of openai, mistral, ollama or another server with OpenAI's API.",
        )
    base = url.rstrip("/") + ("/v1" if kind == "mistral" else "")
    headers = {"accept-encoding": "identity", **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        with anyio.fail_after(SECONDS):
            async with (
                httpx2.AsyncClient(timeout=SECONDS) as client,
                client.stream(
                    "POST", f"{base}/embeddings", json={"model": model, "input": list(texts)}, headers=headers
                ) as answer,
            ):
                bound(answer, _BODY_BYTES)
                body = await answer.aread()
    except (httpx2.HTTPError, httpx2.InvalidURL, EndlessBody, TimeoutError):
        raise _failed(name, "it does not answer") from None
    if not answer.is_success:
        raise _failed(name, f"{answer.status_code} {one_line(sentence(as_data(body)) or '', 200)}")
    try:
        found = sorted(msgspec.json.decode(body, type=_Answer).data, key=lambda one: one.index)
    except msgspec.MsgspecError:
        raise _failed(name, "its answer cannot be read") from None
    sizes = {len(one.embedding) for one in found}
    if len(found) != len(texts) or len(sizes) != 1 or not 0 < max(sizes) <= DIMENSIONS:
        raise _failed(name, "it sent other vectors than were asked for")
    return [one.embedding for one in found]


def _failed(name: str, why: str) -> OutsideError:
    return OutsideError("no_embeddings", f"{one_line(name, 100)} gives no embeddings: {why}.", retryable=True)
