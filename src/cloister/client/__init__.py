"""The Python client: sandboxes and runs of a server, for programs. Typed, for plain and for async code.

`Client` and `Sandbox` are for plain code, `AsyncClient` and `AsyncSandbox` for async code; both have the same methods.
Every error is a `CloisterError` with a stable `code`.
"""

from cloister.client.asynchronous import AsyncClient, AsyncRun, AsyncSandbox
from cloister.client.synchronous import Client, Run, Sandbox
from cloister.core.errors import CloisterError

__all__ = ["AsyncClient", "AsyncRun", "AsyncSandbox", "Client", "CloisterError", "Run", "Sandbox"]
