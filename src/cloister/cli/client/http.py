"""The server's HTTP side, as the command needs it: small JSON requests on loopback."""

import http.client
import json
import select
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, TypeVar, cast

import msgspec

from cloister.cli.client.discover import Place
from cloister.core.errors import Bug, CloisterError, HostError, OutsideError, SandboxLost, UserError
from cloister.core.ids import RunId

if TYPE_CHECKING:
    from cloister.core.requests import NewRun
    from cloister.sandbox.api import SandboxInfo, SnapshotInfo
    from cloister.sandbox.pool import PoolInfo

T = TypeVar("T")

QUICK_SECONDS = 30.0
STREAM_SECONDS = 120.0
"""How long nothing may move while a file is copied."""

OPEN_SECONDS = 1_800.0
"""Opening the first sandbox may build the template."""


class _Admitted(msgspec.Struct, frozen=True):
    id: RunId


class Client:
    """Talks to one living server."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def healthy(self) -> bool:
        """Whether it answers."""
        try:
            self.ask("GET", "/v1/health", seconds=5)
        except CloisterError:
            return False
        return True

    def submit(self, new: "NewRun") -> RunId:
        return self.decoded(_Admitted, self.ask("POST", "/v1/runs", new)).id

    def pool(self) -> tuple["PoolInfo", ...]:
        from cloister.sandbox.pool import PoolInfo

        return self.decoded(tuple[PoolInfo, ...], self.ask("GET", "/v1/pool", seconds=5))

    def sandboxes(self) -> tuple["SandboxInfo", ...]:
        from cloister.sandbox.api import SandboxInfo

        return self.decoded(tuple[SandboxInfo, ...], self.ask("GET", "/v1/sandboxes"))

    def create_sandbox(self, wanted: dict[str, object]) -> "SandboxInfo":
        from cloister.sandbox.api import SandboxInfo

        reply = self.ask("POST", "/v1/sandboxes", wanted, seconds=OPEN_SECONDS)
        return self.decoded(SandboxInfo, reply)

    def snapshots(self) -> tuple["SnapshotInfo", ...]:
        from cloister.sandbox.api import SnapshotInfo

        return self.decoded(tuple[SnapshotInfo, ...], self.ask("GET", "/v1/snapshots"))

    def fork_sandbox(self, sandbox: str, count: int) -> tuple["SandboxInfo", ...]:
        from cloister.sandbox.api import SandboxInfo

        reply = self.ask("POST", f"/v1/sandboxes/{sandbox}/fork", {"n": count}, seconds=OPEN_SECONDS)
        return self.decoded(tuple[SandboxInfo, ...], reply)

    def remove_sandbox(self, sandbox: str) -> None:
        self.ask("DELETE", f"/v1/sandboxes/{sandbox}", seconds=60)

    def find_sandbox(self, name: str) -> "SandboxInfo":
        """The sandbox whose id starts with `name`. Raises `UserError` (`no_such_sandbox`, `ambiguous_sandbox`)."""
        found = [i for i in self.sandboxes() if i.id.startswith((name, f"s-{name}"))] if name else []
        exact = [info for info in found if info.id == name]
        if len(found) > 1 and not exact:
            names = ", ".join(info.id for info in found[:3])
            raise UserError("ambiguous_sandbox", f"{name!r} is the start of several sandboxes ({names} …).")
        if not found:
            raise no_such_sandbox(name)
        return (exact or found)[0]

    def decoded(self, kind: type[T], reply: bytes) -> T:
        try:
            return msgspec.json.decode(reply, type=kind)
        except msgspec.DecodeError as error:
            raise Bug(f"The server's reply is not what this version expects: {error}") from error

    @contextmanager
    def receiving(self, path: str) -> Generator[IO[bytes]]:
        """A body of any size, to be read as it comes; one that breaks off is an error when it is read."""
        with self._connected() as connection:
            connection.request("GET", path, headers=self._headers())
            response = connection.getresponse()
            if response.status >= 400:
                raise failure(response.status, response.read())
            yield response  # pyright: ignore[reportReturnType] (it has all that is needed of a file)

    @contextmanager
    def sending(self, method: str, path: str) -> Generator[IO[bytes]]:
        """Something to write a body of any size to; it is complete when the block ends well."""
        with self._connected() as connection:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in self._headers().items():
                connection.putheader(name, value)
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            body = _Body(connection)
            early = False
            try:
                yield cast("IO[bytes]", body)
                connection.send(b"0\r\n\r\n")
            except (_Answered, ConnectionError):
                early = True  # the server has said why, unless it is gone
            response = connection.getresponse()
            status, reply = response.status, response.read()
            if status >= 400:
                raise failure(status, reply)
            if early:
                raise HostError("server_gone", f"The server at {self.place.url} did not take all of it.")

    @contextmanager
    def _connected(self) -> "Generator[http.client.HTTPConnection]":
        connection = http.client.HTTPConnection("127.0.0.1", self.place.port, timeout=STREAM_SECONDS)
        try:
            yield connection
        except TimeoutError:
            raise HostError(
                "server_silent", f"The server at {self.place.url} did not move for {STREAM_SECONDS:g} s."
            ) from None
        except (ConnectionError, http.client.HTTPException):
            raise HostError(
                "server_gone", "The connection broke off: the sandbox or the server went away."
            ) from None
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.place.token()}"}

    def ask(self, method: str, path: str, body: object = None, seconds: float = QUICK_SECONDS) -> bytes:
        """The reply of the server. Raises what it refused with, or `HostError`."""
        headers = self._headers()
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.place.port, timeout=seconds)
        try:
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            status, reply = response.status, response.read()
        except TimeoutError:
            raise HostError(
                "server_silent", f"The server at {self.place.url} did not answer in {seconds:g} s."
            ) from None
        except (OSError, http.client.HTTPException):
            raise HostError(
                "server_gone", f"The server at {self.place.url} went away: see `cloister serve --status`."
            ) from None
        finally:
            connection.close()
        if status >= 400:
            raise failure(status, reply)
        return reply


class _Answered(Exception):
    """The server answered before it had all of the body."""


class _Body:
    """A request's body: each write is a chunk of it."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> int:
        # An answer now is a refusal; who goes on sending may never get to read it.
        if select.select([self._connection.sock], [], [], 0)[0]:
            raise _Answered
        if data:
            self._connection.send(b"%x\r\n" % len(data) + data + b"\r\n")
        return len(data)


def no_such_sandbox(name: str) -> UserError:
    return UserError(
        "no_such_sandbox", f"There is no sandbox {name[:64]!r}: `cloister sandbox ls` lists them."
    )


def failure(status: int, reply: bytes) -> CloisterError:
    """The server's refusal as the error it was there."""
    code, message = "refused", f"The server refused with status {status}."
    try:
        match cast(object, json.loads(reply)):
            case {"code": str(given), "message": str(sentence)}:
                code, message = given, sentence
            case _:
                pass
    except ValueError:
        pass
    if code in ("no_model", "no_key", "no_model_url"):
        message += (
            " The server does the work, with the environment it was started in: restart it with these set."
        )
    match status:
        case 410:
            return SandboxLost(message)
        case 401 | 421 | 503 | 504:
            return HostError(code, message)
        case 502:
            return OutsideError(code, message)
        case _ if status >= 500:
            return Bug(message)
        case _:
            return UserError(code, message)
