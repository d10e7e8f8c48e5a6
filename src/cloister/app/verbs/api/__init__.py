"""The verbs: everything a person can do, as one typed interface with the role that each verb needs.

`cloister.app.verbs.local` implements it in this process, the HTTP client against a server. Both check the caller's
role and the policy, write the same audit entries and raise the same error codes. A verbs object belongs to one
caller, and a verb without `needs` is for admins. `run` is always an id, a unique beginning of one, or `last`; unknown ones raise `UserError` (`no_such_run`,
`ambiguous_run`). A role that is too low raises `UserError` (`denied`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cloister.app.verbs.api.operating import (
    AuditVerbs,
    MachineVerbs,
    ModelVerbs,
    PolicyVerbs,
    TemplateVerbs,
    TokenVerbs,
)
from cloister.app.verbs.api.people import PeopleVerbs
from cloister.app.verbs.api.runs import EnvironmentVerbs, RunVerbs, TriggerVerbs
from cloister.app.verbs.api.sandboxes import Attached, FileVerbs, SandboxVerbs, SnapshotVerbs, Steered

if TYPE_CHECKING:
    from cloister.app.verbs.knowledge import KnowledgeVerbs
    from cloister.app.verbs.tools import ToolVerbs
    from cloister.app.verbs.webhooks import WebhookVerbs

__all__ = [
    "Attached",
    "AuditVerbs",
    "EnvironmentVerbs",
    "FileVerbs",
    "MachineVerbs",
    "ModelVerbs",
    "PeopleVerbs",
    "PolicyVerbs",
    "RunVerbs",
    "SandboxVerbs",
    "SnapshotVerbs",
    "Steered",
    "TemplateVerbs",
    "TokenVerbs",
    "TriggerVerbs",
    "Verbs",
]


class Verbs(Protocol):
    """Everything one caller can do."""

    @property
    def runs(self) -> RunVerbs: ...
    @property
    def audit(self) -> AuditVerbs: ...
    @property
    def tokens(self) -> TokenVerbs: ...
    @property
    def webhooks(self) -> WebhookVerbs: ...
    @property
    def templates(self) -> TemplateVerbs: ...
    @property
    def snapshots(self) -> SnapshotVerbs: ...
    @property
    def sandboxes(self) -> SandboxVerbs: ...
    @property
    def files(self) -> FileVerbs: ...
    @property
    def models(self) -> ModelVerbs: ...
    @property
    def machine(self) -> MachineVerbs: ...
    @property
    def policy(self) -> PolicyVerbs: ...
    @property
    def environments(self) -> EnvironmentVerbs: ...
    @property
    def knowledge(self) -> KnowledgeVerbs: ...
    @property
    def triggers(self) -> TriggerVerbs: ...
    @property
    def tools(self) -> ToolVerbs: ...
    @property
    def people(self) -> PeopleVerbs: ...
