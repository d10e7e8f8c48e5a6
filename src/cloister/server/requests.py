"""How request bodies are read and how long their callers are waited for."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import msgspec
from litestar import Request
from litestar.datastructures import State

from cloister.core.describe import describe
from cloister.core.errors import HostError, UserError

Result = TypeVar("Result")

JSON_BYTES = 1_048_576
"""Largest JSON body."""


class StrictRequest(Request[Any, Any, State]):
    """Decodes a JSON body as the record its route names, without turning text into numbers."""

    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        body = await self.body()
        try:
            return msgspec.json.decode(body, type=Any if field is None else field.annotation)
        except msgspec.MsgspecError as error:
            raise UserError("bad_request", describe(error)) from None
        except (UnicodeDecodeError, RecursionError):
            raise UserError("bad_request", "The request is not JSON in UTF-8.") from None


async def while_wanted(
    request: Request[Any, Any, State], leaving: anyio.Event, work: Callable[[], Awaitable[Result]]
) -> Result:
    """The result of `work`, which is cancelled when its caller hangs up or the server goes."""
    results: list[Result] = []
    async with anyio.create_task_group() as tasks:

        async def caller_gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        async def server_going() -> None:
            await leaving.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(caller_gone)
        tasks.start_soon(server_going)
        results.append(await work())
        tasks.cancel_scope.cancel()
    if not results:
        raise HostError(
            "server_stopping", "The server is stopping and ended this: ask again when it is back."
        )
    return results[0]
