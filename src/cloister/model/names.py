"""Resolves the name of a model: `PROVIDER:NAME`, `local:NAME` or `script:FILE`."""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from anyio import to_thread

from cloister.core.errors import UserError
from cloister.core.model_config import ModelRoutes
from cloister.core.text import one_line
from cloister.model.api import Model
from cloister.model.catalog import CATALOG, COMPATIBLE, LOCAL, NAME_CHARS, SCRIPT, Amazon
from cloister.model.local.files import NO_SHELF, Shelf, is_path
from cloister.model.local.host import LocalHost, local_model
from cloister.model.scripted import ScriptedModel, load_script
from cloister.model.small_models import JsonActions

_EXAMPLE = "http://localhost:8080/v1"
NO_MODEL = (
    "No model is configured: set "
    + ", ".join(dict.fromkeys(p.key_variable for p in CATALOG.values() if p.needs_key))
    + " or CLOISTER_MODEL_URL, or run `cloister model fetch` and use --model local."
)

_ELSEWHERE = re.compile(r"[?#\\]|(?:^|/)\.\.?(?:/|$)")
"""Some APIs put the name into the URL, where this would reach another service."""
_TRAVELS = re.compile(r"[!-~]*")
"""The characters a header can carry. HTTP clients quote the whole key in the error for any other."""


@dataclass(frozen=True, slots=True)
class Access:
    """The model settings of this machine."""

    default: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Provider → key."""
    url: str | None = None
    """Base URL of an OpenAI-compatible server."""
    routes: ModelRoutes = field(default_factory=ModelRoutes)
    amazon: Amazon | None = None
    """Credentials and region for Bedrock."""
    local: LocalHost | None = None
    """Runs models on this machine."""
    files: Shelf = NO_SHELF
    """The files of local models, for their names."""

    @property
    def shelf(self) -> Shelf:
        return self.files if self.local is None else self.local.shelf

    def url_of(self, kind: str) -> str | None:
        """The URL of a provider: from the settings, else from the catalog."""
        own = self.url if kind == COMPATIBLE else None
        return self.routes.url.get(kind) or own or CATALOG[kind].url


def choose(name: str | None, access: Access) -> str:
    """Return the full name of the model to use, without opening it.

    Without `name` and a default, it is the server at the URL, then the first provider with a key. A provider without
    a model name gets the default of the catalog.
    Raises `UserError` with code `no_model`, `unknown_model`, `no_key` or `no_model_url`.
    """
    wanted = name or access.default or _first_usable(access)
    kind, _, model = wanted.partition(":")
    if kind == SCRIPT:
        if not model:
            raise UserError("unknown_model", "Which script? Name its file: --model script:FILE.")
        return wanted
    if kind == LOCAL:
        return f"{kind}:{_local_name(model, access.shelf)}"
    provider = CATALOG.get(kind)
    if provider is None:
        raise UserError("unknown_model", f"There is no model {one_line(wanted, 200)!r}: {_spellings()}")
    if len(model) > NAME_CHARS or not model.isprintable() or _ELSEWHERE.search(model):
        raise UserError(
            "unknown_model",
            f"{one_line(wanted, 100)!r} is not a valid model name: at most {NAME_CHARS} characters, without line breaks, "
            "?, # and backslashes, and without `..` as a part.",
        )
    if provider.needs_key and not access.keys.get(kind):
        raise UserError("no_key", f"{provider.title} needs a key: set {provider.key_variable}.")
    if not _TRAVELS.fullmatch(access.keys.get(kind) or ""):
        raise UserError(
            "no_key",
            f"The key in {provider.key_variable} contains a space, a line break or a character that keys do not have: set it again.",
        )
    _check_url(kind, access.url_of(kind))
    return f"{kind}:{model or provider.model}"


@asynccontextmanager
async def open_model(name: str | None, access: Access) -> AsyncGenerator[Model]:
    """Open the model that `choose` names; leaving the block closes its connections.

    Raises as `choose`, `UserError` (`bad_script`), and `OutsideError` (`model_unreachable`) if a server must list its
    models and does not answer.
    """
    kind, _, model = choose(name, access).partition(":")
    if kind == SCRIPT:
        yield await to_thread.run_sync(_load, model)
        return
    await to_thread.run_sync(_import_providers)
    if kind == LOCAL:
        if access.local is None:
            raise UserError("no_local", "Local models are not available here.")
        await access.local.served(model)
        yield local_model(model, access.local)
        return
    from cloister.model.remote.providers import open_remote
    from cloister.model.remote.wire_formats import Endpoint

    endpoint = Endpoint(kind, model, access.url_of(kind), access.keys.get(kind), access.amazon)
    async with open_remote(endpoint) as remote:
        entry = access.routes.entry.get(f"{kind}:{model}") or access.routes.entry.get(remote.name)
        yield JsonActions(remote, entry.window) if entry is not None and entry.mode == "json" else remote


def _load(path: str) -> ScriptedModel:
    return ScriptedModel(load_script(Path(path).expanduser()))


def _import_providers() -> None:
    """Takes seconds: run it in a thread, so that it does not block other runs."""
    import cloister.model.remote.providers  # noqa: F401  # pyright: ignore[reportUnusedImport]


def _first_usable(access: Access) -> str:
    # A configured URL takes precedence over keys.
    if access.url:
        return COMPATIBLE
    for kind, provider in CATALOG.items():
        if access.keys.get(kind) and (provider.needs_key or provider.extra):
            return kind
    raise UserError("no_model", NO_MODEL)


def _check_url(kind: str, url: str | None) -> None:
    if not url and kind == COMPATIBLE:
        raise UserError(
            "no_model_url",
            f"{COMPATIBLE}:NAME needs a server: set CLOISTER_MODEL_URL to its base URL, e.g. {_EXAMPLE} "
            f"(and {CATALOG[kind].key_variable} if it needs a key).",
        )
    if url and not url.startswith(("http://", "https://")):
        raise UserError("no_model_url", f"The URL of {kind} must begin with http:// or https://.")
    host = _host(url) if url else None
    if url and host is None:
        raise UserError(
            "no_model_url",
            f"The URL of {kind} is not valid: write it as http://HOST:PORT/PATH, e.g. {_EXAMPLE}.",
        )
    if host is not None and "@" in host:
        raise UserError(
            "no_model_url",
            f"The URL of {kind} contains a user name or password, which error messages would show: remove it and "
            f"set {CATALOG[kind].key_variable}.",
        )


def _host(url: str) -> str | None:
    """The host of a URL, with user name and password; None if the URL is not valid."""
    try:
        parts = urlsplit(url)
        there = bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, an open bracket
        return None
    return parts.netloc if there and url.isprintable() and " " not in url else None


def _local_name(model: str, shelf: Shelf) -> str:
    name = model or next(iter(shelf.files))
    return name if is_path(name) else shelf.entry(name, ", or the path of a GGUF file").name


def _spellings() -> str:
    return "use " + ", ".join(f"{kind}:NAME" for kind in (*CATALOG, LOCAL)) + f" or {SCRIPT}:FILE."
