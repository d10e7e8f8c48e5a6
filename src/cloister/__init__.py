"""Cloister: a self-hosted background coding agent.

`from cloister import Client, AsyncClient, Sandbox` is the Python client; it is imported at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloister.client import (
        AsyncClient,
        AsyncRun,
        AsyncSandbox,
        Client,
        CloisterError,
        Run,
        Sandbox,
    )

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AsyncRun",
    "AsyncSandbox",
    "Client",
    "CloisterError",
    "Run",
    "Sandbox",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("cloister.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
