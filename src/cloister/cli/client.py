"""The server's HTTP side, as the command needs it: small JSON requests on loopback."""

import http.client
import json
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from cloister.cli.living import Place
from cloister.core.errors import Bug, CloisterError, HostError, OutsideError, SandboxLost, UserError
from cloister.core.ids import RunId

if TYPE_CHECKING:
    from cloister.core.records import NewRun
    from cloister.sandbox.api import SandboxInfo

T = TypeVar("T")

QUICK_SECONDS = 30.0
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

    def sandboxes(self) -> tuple["SandboxInfo", ...]:
        from cloister.sandbox.api import SandboxInfo

        return self.decoded(tuple[SandboxInfo, ...], self.ask("GET", "/v1/sandboxes"))

    def create_sandbox(self, wanted: dict[str, object]) -> "SandboxInfo":
        from cloister.sandbox.api import SandboxInfo

        reply = self.ask("POST", "/v1/sandboxes", wanted, seconds=OPEN_SECONDS)
        return self.decoded(SandboxInfo, reply)

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

    def ask(self, method: str, path: str, body: object = None, seconds: float = QUICK_SECONDS) -> bytes:
        """The reply of the server. Raises what it refused with, or `HostError`."""
        headers = {"Authorization": f"Bearer {self.place.token()}"}
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
        message += " The server does the work, with the environment it was started in: restart it with these set."
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
