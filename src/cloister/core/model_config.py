"""The `[models]` table of the configuration file: which model serves which role."""

from collections.abc import Collection, Iterator
from typing import Annotated, Literal

import msgspec

Dollars = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
ModelNames = str | tuple[str, ...] | None
"""One model, or several, each the fallback of the one before it; None: see the wider table."""


class RoleModels(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Role → model. An unnamed role uses the model of `code`."""

    plan: ModelNames = None
    code: ModelNames = None
    review: ModelNames = None
    summarise: ModelNames = None
    judge: ModelNames = None
    classify: ModelNames = None


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[models.entry."provider:name"]` table: facts about a model that override the built-in ones."""

    mode: Literal["tools", "json"] = "tools"
    """`json`: one JSON object per turn under a schema, for models too small to call tools."""
    sees: bool | None = None
    """Whether it takes pictures; None: as usual for its provider."""
    window: Annotated[int, msgspec.Meta(ge=1_024, le=1_000_000_000)] | None = None
    """Context window in tokens."""
    input_price: Dollars | None = None
    """US dollars per million tokens."""
    output_price: Dollars | None = None
    cached_price: Dollars | None = None
    """Of cached input; None: the price of input."""


class RepositoryModels(RoleModels, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[models.repository]]` table: overrides for some repositories."""

    match: str
    """A pattern for the repository's path or URL, as in a shell: `*` stands for anything."""


class ModelRoutes(RoleModels, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole table."""

    repository: tuple[RepositoryModels, ...] = ()
    """The first match counts."""
    kind: dict[str, RoleModels] = {}
    """Overrides by kind of task; they take precedence over `repository`."""
    url: dict[str, str] = {}
    """Provider → base URL, if it differs from the usual one."""
    entry: dict[str, ModelEntry] = {}
    """By full name."""


def check_routes(routes: ModelRoutes, providers: Collection[str], own: Collection[str]) -> str | None:
    """Return what is wrong with the table, as one sentence; None if valid. `own` are models without a URL."""
    for kind, url in routes.url.items():
        if kind not in providers:
            return f"models.url names {kind!r}, which is no provider: there are {', '.join(providers)}."
        if not url.startswith(("http://", "https://")):
            return f"models.url.{kind} must begin with http:// or https://."
    for name, entry in routes.entry.items():
        kind, colon, model = name.partition(":")
        if kind not in (*providers, *own) or not colon or not model:
            return f"models.entry names {name!r}: write PROVIDER:NAME, as for run --model."
        if (entry.input_price is None) != (entry.output_price is None):
            return f"models.entry.{name!r} has one price: give input_price and output_price."
    for where, table in _tables(routes):
        for role in RoleModels.__struct_fields__:
            if not _named(getattr(table, role)):
                return f"{where}.{role} names no model: write PROVIDER:NAME, or leave it out."
    return None


def _tables(routes: ModelRoutes) -> Iterator[tuple[str, RoleModels]]:
    yield "models", routes
    yield from (("models.repository", table) for table in routes.repository)
    yield from ((f"models.kind.{kind}", table) for kind, table in routes.kind.items())


def _named(names: ModelNames) -> bool:
    """Return whether `names` is None, or at least one name and no empty one."""
    some = (names,) if isinstance(names, str) else names
    return some is None or (bool(some) and all(name.strip() for name in some))
