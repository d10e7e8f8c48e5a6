"""What a person can do with an installation: the verbs of the audit, tokens, templates, models and the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cloister.app.verbs.declare import SLOW_SECONDS, needs, no_report

if TYPE_CHECKING:
    from cloister.app.checkup import Checkup
    from cloister.app.verbs.records import (
        EnvironmentInfo,
        Explained,
        LocalModel,
        LoginInfo,
        MadeToken,
        Me,
        ModelRole,
        ModelTrial,
        OneTimeLogin,
        PolicyVerdict,
        RuleContext,
        TokenInfo,
    )
    from cloister.core.requests import Role
    from cloister.egress.packages import Meaning
    from cloister.log.api import Peer
    from cloister.log.audit.entry import AuditEntry, Checkpoint
    from cloister.log.audit.verify import Verdict
    from cloister.policy.api import Policy
    from cloister.sandbox.api import Report
    from cloister.sandbox.templates.catalog import TemplateInfo
    from cloister.sandbox.templates.recipes import Recipe


class AuditVerbs(Protocol):
    """The audit and the key that signs it."""

    @needs("admin", "GET audit")
    async def page(
        self,
        after: int = 0,
        limit: int = 1_000,
        run: str | None = None,
        kind: str | None = None,
        who: str | None = None,
        newest: bool = False,
    ) -> tuple[AuditEntry, ...]:
        """Entries with a greater number, oldest first. Ask again with the last number to follow.

        Only those of `run`, of this kind, and of people with `who` in their names; with `newest` the newest first.
        """
        ...

    @needs("admin", "GET audit/checkpoints")
    async def checkpoints(self, after: int, until: int) -> tuple[Checkpoint, ...]:
        """The signatures over entries with numbers in `after < number <= until`."""
        ...

    @needs("admin", "GET audit/verify", seconds=SLOW_SECONDS)
    async def verify(self, key: str | None = None) -> Verdict:
        """Check every entry, signature and event. Raises `UserError` (`bad_key`)."""
        ...

    @needs("admin", "GET audit/key", member="key")
    async def key(self) -> str:
        """The public key that signs the audit."""
        ...

    @needs("admin", "POST audit/key", member="key")
    async def rotate(self) -> str:
        """Replace the key; returns the new public one."""
        ...

    @needs("admin", "POST audit/accept")
    async def accept(self, reason: str) -> None:
        """Accept the audit as it is and sign a new head, after a restore or a lost key. An entry records it.

        Raises `UserError` (`bad_reason`).
        """
        ...

    @needs("admin", "POST audit/send", member="sent", seconds=SLOW_SECONDS)
    async def send_logs(self, run: str | None = None, since_us: int = 0) -> int:
        """Send entries to the configured OpenTelemetry collector; returns how many.

        Raises `UserError` (`no_collector`), `OutsideError`.
        """
        ...


class TokenVerbs(Protocol):
    """Named tokens for the server, and logins of browsers that come from tokens."""

    @needs("admin", "POST tokens")
    async def add(self, name: str, role: Role = "viewer") -> MadeToken:
        """Raises `UserError` (`bad_name`, `name_taken`, `too_many_tokens`)."""
        ...

    @needs("admin", "GET tokens")
    async def list(self) -> tuple[TokenInfo, ...]: ...

    @needs("admin", "DELETE tokens/{name}")
    async def remove(self, name: str) -> None:
        """Raises `UserError` (`no_such_token`)."""
        ...

    @needs("viewer", "GET me", anywhere=True)
    async def me(self) -> Me: ...

    @needs("viewer", "POST logins", anywhere=True)
    async def offer_login(self) -> OneTimeLogin:
        """The secret of an address that logs a browser in as the caller, once and within a minute.

        Raises `UserError` (`denied`) without a token, `HostError` (`no_server`).
        """
        ...

    @needs("viewer", "GET logins", anywhere=True)
    async def logins(self) -> tuple[LoginInfo, ...]:
        """The caller's own logins; of an admin those of everyone."""
        ...

    @needs("viewer", "DELETE logins/{login}", anywhere=True)
    async def end_login(self, login: str) -> None:
        """End one of the caller's logins; admins end anyone's. Raises `UserError` (`no_such_login`)."""
        ...


class TemplateVerbs(Protocol):
    """Templates that sandboxes start from. Unknown ones raise `UserError` (`no_such_template`)."""

    @needs("viewer", "GET templates", anywhere=True)
    async def list(self) -> tuple[TemplateInfo, ...]:
        """All of them, without the tests of their baselines. Viewers see no values of arguments and environments."""
        ...

    @needs("viewer", "GET templates/{name}")
    async def get(self, name: str) -> TemplateInfo: ...

    @needs("admin", "PUT templates/{name}")
    async def describe(self, name: str, recipe: Recipe, *, replace_built_in: bool = False) -> TemplateInfo:
        """Store a recipe. Raises `UserError` (`bad_template`, `built_in_template`)."""
        ...

    @needs("admin", "POST templates/{name}/build")
    async def build(self, name: str, *, again: bool = False, report: Report = no_report) -> TemplateInfo:
        """Build a template unless it is ready, or `again`; returns when it is ready."""
        ...

    @needs("admin", "POST environments")
    async def set_up(
        self,
        repo: str,
        ref: str | None = None,
        setup: str = "auto",
        report: Report = no_report,
        settings: str = "",
    ) -> EnvironmentInfo:
        """Detect, build and check the environment of a repository, as a run would; a failure is a part of the result.

        `settings` is the text of a `.cloister/config.toml` that takes the place of the committed one.
        """
        ...

    @needs("operator", "GET templates/{name}/log")
    async def log(self, name: str) -> str:
        """The output of the last build, which may print values of arguments: viewers do not see those."""
        ...

    @needs("admin", "DELETE templates/{name}", seconds=SLOW_SECONDS)
    async def remove(self, name: str) -> None:
        """Remove a template and its recipe. Raises `UserError` (`template_in_use`)."""
        ...


class ModelVerbs(Protocol):
    """Model files on the server's machine."""

    @needs("viewer", "GET models", anywhere=True)
    async def list(self) -> tuple[LocalModel, ...]: ...

    @needs("viewer", "GET models/roles")
    async def roles(self, repo: str | None = None) -> tuple[ModelRole, ...]:
        """Which models serve which role, for a repository or in general, with prices. Keys are never part of it."""
        ...

    @needs("admin", "POST models/try", seconds=SLOW_SECONDS)
    async def try_out(self, name: str) -> ModelTrial:
        """Ask a model for one word, which costs what it costs; a failure is a result.

        Raises `UserError` (`unknown_model`, `no_key`, `no_model_url`, `denied`).
        """
        ...

    @needs("admin", "POST models/fetch")
    async def fetch(self, name: str | None = None, report: Report = no_report) -> LocalModel:
        """Download or verify a model's file; None is the first of the list. Raises `UserError` (`unknown_model`)."""
        ...

    @needs("admin", "POST models")
    async def add(
        self, source: str, name: str | None = None, sha256: str | None = None, report: Report = no_report
    ) -> LocalModel:
        """Keep a GGUF file under a name: `source` is a URL, or a path on the server's machine.

        Raises `UserError` (`bad_source`, `bad_sum`, `bad_name`, `name_taken`, `bad_model_file`), `OutsideError`.
        """
        ...

    @needs("admin", "DELETE models/{name}")
    async def remove(self, name: str) -> tuple[str, ...]:
        """Remove a downloaded or added file; returns the removed paths. Raises `UserError` (`own_file`, `unknown_model`)."""
        ...


class MachineVerbs(Protocol):
    """The machine that runs work on."""

    @needs("admin", "GET doctor", seconds=SLOW_SECONDS)
    async def doctor(self) -> Checkup:
        """Check whether a run can start here, tiers included; each finding says what would help."""
        ...

    @needs("viewer", "GET machines")
    async def all(self) -> tuple[Peer, ...]:
        """The machines of the cluster; none where this one works alone."""
        ...

    @needs("admin", "POST machines/{machine}/drain")
    async def drain(self, machine: str, on: bool) -> None:
        """Have a machine take no more runs and hand over those it drives, or take runs again.

        Raises `UserError` (`no_such_machine`).
        """
        ...


class PolicyVerbs(Protocol):
    """The rules of the server's machine. Raises `UserError` (`bad_policy`, `bad_action`)."""

    @needs("operator", "POST policy/layers", body="context")
    async def layers(self, context: RuleContext) -> Policy:
        """Every layer above a run, the widest first."""
        ...

    @needs("operator", "POST policy/explain")
    async def explain(self, action: str, context: RuleContext, *, untrusted: bool = False) -> Explained:
        """The decision about one action, e.g. `bash:git push`."""
        ...

    @needs("operator", "POST policy/test")
    async def test(self, text: str, source: str) -> tuple[PolicyVerdict, ...]:
        """Run the tests of a policy file against that file and the built-in rules."""
        ...

    @needs("admin", "GET policy/sets/{name}", seconds=SLOW_SECONDS)
    async def sets(self, name: str, *, again: bool = False) -> Meaning:
        """The hosts that a named set stands for on the server's machine. Raises `UserError` (`no_such_set`)."""
        ...
