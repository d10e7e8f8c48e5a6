"""From a model's name to a model: `anthropic:NAME`, `openai:NAME`, `google:NAME`, `compatible:NAME`, `script:FILE`."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anyio import to_thread

from cloister.core.errors import UserError
from cloister.core.routes import ModelRoutes
from cloister.core.text import one_line
from cloister.model.api import Model
from cloister.model.catalog import CATALOG, COMPATIBLE, COMPATIBLE_KEY_VARIABLE, COMPATIBLE_MODEL, SCRIPT
from cloister.model.scripted import ScriptedModel, load_script

NO_MODEL = (
    "No model is configured: set "
    + ", ".join(provider.key_variable for provider in CATALOG.values())
    + " or CLOISTER_MODEL_URL, or use --model script:FILE."
)


@dataclass(frozen=True, slots=True)
class Access:
    """What this machine's settings say about models."""

    default: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Provider → key."""
    url: str | None = None
    """Base URL of an OpenAI-compatible server."""
    routes: ModelRoutes = field(default_factory=ModelRoutes)


def choose(name: str | None, access: Access) -> str:
    """The full name of the model to use, without opening it. Pure.

    `name` is what the caller asked for; without it and a default it is the server at the URL, then the first
    provider with a key. A provider without a model name gets the catalog's.
    Raises `UserError` with code `no_model`, `unknown_model`, `no_key` or `no_model_url`.
    """
    wanted = name or access.default or _first_usable(access)
    kind, _, model = wanted.partition(":")
    if kind == SCRIPT:
        if not model:
            raise UserError("unknown_model", "Which script? Name its file: --model script:FILE.")
        return wanted
    if kind == COMPATIBLE:
        _check_url(access.url)
        return f"{kind}:{model or COMPATIBLE_MODEL}"
    provider = CATALOG.get(kind)
    if provider is None:
        raise UserError("unknown_model", f"There is no model {one_line(wanted)!r}: {_spellings()}")
    if not access.keys.get(kind):
        raise UserError("no_key", f"{provider.title} needs a key: set {provider.key_variable}.")
    return f"{kind}:{model or provider.model}"


@asynccontextmanager
async def open_model(name: str | None, access: Access) -> AsyncGenerator[Model]:
    """The model that `choose` names, with its connections; leaving the block closes them.

    Raises as `choose`, `UserError` (`bad_script`), and `OutsideError` (`model_unreachable`) when a compatible
    server must be asked for its model and does not answer.
    """
    kind, _, model = choose(name, access).partition(":")
    if kind == SCRIPT:
        yield await to_thread.run_sync(_load, model)
        return
    await to_thread.run_sync(_import_providers)
    from cloister.model.providers import open_compatible, open_provider

    if kind == COMPATIBLE:
        opened = open_compatible(model, url=access.url or "", key=access.keys.get(COMPATIBLE))
    else:
        opened = open_provider(kind, model, key=access.keys[kind])
    async with opened as remote:
        yield remote


def _load(path: str) -> ScriptedModel:
    return ScriptedModel(load_script(Path(path).expanduser()))


def _import_providers() -> None:
    """It takes seconds; in a thread, other runs do not stand still for it."""
    import cloister.model.providers  # noqa: F401  # pyright: ignore[reportUnusedImport]


def _first_usable(access: Access) -> str:
    # Who names a server of their own means it, whatever keys lie around.
    if access.url:
        return COMPATIBLE
    for kind in CATALOG:
        if access.keys.get(kind):
            return kind
    raise UserError("no_model", NO_MODEL)


def _check_url(url: str | None) -> None:
    if not url:
        raise UserError(
            "no_model_url",
            f"{COMPATIBLE}:NAME needs a server: set CLOISTER_MODEL_URL to its base URL, e.g. http://localhost:8080/v1 "
            f"(and {COMPATIBLE_KEY_VARIABLE} if it wants a key).",
        )
    if not url.startswith(("http://", "https://")):
        raise UserError("no_model_url", "CLOISTER_MODEL_URL must begin with http:// or https://.")


def _spellings() -> str:
    return "use " + ", ".join(f"{kind}:NAME" for kind in (*CATALOG, COMPATIBLE)) + f" or {SCRIPT}:FILE."
