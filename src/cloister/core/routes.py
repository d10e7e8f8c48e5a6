"""Which model does what: the `[models]` table of the configuration file, as records."""

import msgspec

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
