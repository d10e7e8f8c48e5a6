"""The verbs of notices: where it says that a run ended, asks or is stuck. See `api.py` for the others."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from cloister.app.verbs.declare import needs

Noticed = Literal["ended", "asks", "stuck"]
WireFormat = Literal["json", "slack", "mail"]

ALL: tuple[Noticed, ...] = ("ended", "asks", "stuck")


class NewWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place that notices go to."""

    name: Annotated[str, Meta(max_length=40)]
    address: Annotated[str, Meta(max_length=2_000)]
    """An https address, or `mailto:NAME@HOST`."""
    format: WireFormat | None = None
    """None: `mail` for `mailto:`, else `json`, which is signed; `slack` is what Slack, Mattermost and Rocket.Chat take."""
    kinds: tuple[Noticed, ...] = ALL


class MadeWebhook(msgspec.Struct, frozen=True):
    """A new webhook."""

    name: str
    format: WireFormat
    secret: str
    """Verifies the signatures of its deliveries; shown once. Empty for formats without one."""


class WebhookInfo(msgspec.Struct, frozen=True):
    """A webhook as lists show it."""

    name: str
    address: str
    """Without its path, which is often a secret."""
    format: WireFormat
    kinds: tuple[str, ...]
    who: str
    """Who added it."""
    made_at: float
    waiting: int
    """Deliveries that are still tried."""
    dead: int
    """Deliveries that are given up."""


class DeadDelivery(msgspec.Struct, frozen=True):
    """A notice that no try could deliver."""

    id: int
    webhook: str
    kind: str
    run: str
    made_at: float
    tries: int
    problem: str


class WebhookVerbs(Protocol):
    """Webhooks and e-mail about runs. A server sends; without one, notices wait."""

    @needs("admin", "GET webhooks")
    async def list(self) -> tuple[WebhookInfo, ...]: ...

    @needs("admin", "POST webhooks", body="new")
    async def add(self, new: NewWebhook) -> MadeWebhook:
        """Notices of events from now on go there. Raises `UserError` (`bad_webhook`, `bad_name`, `name_taken`, `no_mail`)."""
        ...

    @needs("admin", "DELETE webhooks/{name}")
    async def remove(self, name: str) -> None:
        """Deliveries that wait are dropped. Raises `UserError` (`no_such_webhook`)."""
        ...

    @needs("admin", "POST webhooks/{name}/test")
    async def test(self, name: str) -> None:
        """Send a notice that says it is a test. Raises `UserError` (`no_such_webhook`)."""
        ...

    @needs("admin", "GET dead-deliveries")
    async def dead(self) -> tuple[DeadDelivery, ...]:
        """Deliveries that were given up, the newest first."""
        ...

    @needs("admin", "POST dead-deliveries/replay", member="count")
    async def replay(self, ids: tuple[int, ...] = ()) -> int:
        """Try dead deliveries again, all of them if none is named; returns how many."""
        ...
