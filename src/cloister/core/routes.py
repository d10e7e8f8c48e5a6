"""Which model does what: the `[models]` table of the configuration file, as records."""

from typing import Annotated, Literal

import msgspec

Dollars = Annotated[float, msgspec.Meta(ge=0)]
ModelNames = str | tuple[str, ...] | None
"""One model, or several of which each stands in for the one before it; None leaves it to a wider table."""


class RoleModels(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Role → model. A role that is not named takes what `code` takes."""

    plan: ModelNames = None
    code: ModelNames = None
    review: ModelNames = None
    summarise: ModelNames = None
    judge: ModelNames = None
    classify: ModelNames = None


class ModelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[models.entry."provider:name"]` table: what is to be known about a model, before what is known of it."""

    mode: Literal["tools", "json"] = "tools"
    """`json`: one JSON object per turn under a schema, for models too small to call tools."""
    window: Annotated[int, msgspec.Meta(ge=1_024)] | None = None
    """How many tokens a conversation may have."""
    input_price: Dollars | None = None
    """US dollars per million tokens."""
    output_price: Dollars | None = None
    cached_price: Dollars | None = None
    """Of input that was read from a cache; None is the price of input."""


class RepositoryModels(RoleModels, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One `[[models.repository]]` table: what is different for some repositories."""

    match: str
    """A pattern for the repository's path or URL, as in a shell: `*` stands for anything."""


class ModelRoutes(RoleModels, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole table."""

    repository: tuple[RepositoryModels, ...] = ()
    """The first that matches counts."""
    kind: dict[str, RoleModels] = {}
    """What is different for runs that say what kind of task they are; counts before `repository`."""
    url: dict[str, str] = {}
    """Provider → base URL, where it is not served at the usual one."""
    entry: dict[str, ModelEntry] = {}
    """By full name."""
