"""The verbs of notices in this process."""

from __future__ import annotations

import base64
import secrets
import time
from urllib.parse import urlsplit

import msgspec

from cloister.app.notices.sender import judged
from cloister.app.notices.text import SIGNS, Notice, check_target
from cloister.app.verbs.local import Group, checked
from cloister.app.verbs.webhooks import DeadDelivery, MadeWebhook, NewWebhook, WebhookInfo, WebhookVerbs
from cloister.core.errors import OutsideError, UserError
from cloister.log.sqlite.outbox import OUTBOX_FILE, Outbox, Target

_SECRET_BYTES = 32


@checked(WebhookVerbs)
class LocalWebhooks(Group):
    """Implements `WebhookVerbs`."""

    @property
    def _outbox(self) -> Outbox:
        return Outbox(self._settings.data_dir / OUTBOX_FILE)

    async def list(self) -> tuple[WebhookInfo, ...]:
        targets = await self._outbox.targets()
        counts = await self._outbox.waiting() if targets else {}
        found: list[WebhookInfo] = []
        for one in targets:
            shown = (one.name, _without_path(one.address), one.format, one.kinds, one.who, one.made_at)
            found.append(WebhookInfo(*shown, *counts.get(one.name, (0, 0))))
        return tuple(found)

    async def add(self, new: NewWebhook) -> MadeWebhook:
        form = check_target(new.name, new.address, new.format, new.kinds)
        if form == "mail":
            if self._settings.file.mail is None:
                raise UserError("no_mail", "The settings have no [mail] table with a mail server.")
        else:
            try:
                await judged(new.address, self._settings.file.private_webhooks)
            except OutsideError as error:
                raise UserError("bad_webhook", f"{error.message}: check the address.") from None
        secret = ""
        if form == "json":
            secret = SIGNS + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
        kinds = tuple(dict.fromkeys(new.kinds))
        await self._outbox.add(
            Target(new.name, new.address, form, kinds, secret, time.time(), self.caller.name)
        )
        await self._note(
            "WebhookAdded", name=new.name, address=_without_path(new.address), format=form, kinds=kinds
        )
        return MadeWebhook(new.name, form, secret)

    async def remove(self, name: str) -> None:
        await self._outbox.remove(name)
        await self._note("WebhookRemoved", name=name)

    async def test(self, name: str) -> None:
        if all(one.name != name for one in await self._outbox.targets()):
            raise UserError(
                "no_such_webhook", f"There is no webhook {name[:60]!r}: `cloister webhook ls` lists them."
            )
        now = time.time()
        data = msgspec.json.encode(Notice("test", now, who=self.caller.name))
        await self._outbox.put([(name, f"test-{time.time_ns()}", data)])
        await self._note("WebhookTested", name=name)

    async def dead(self) -> tuple[DeadDelivery, ...]:
        if not await self._outbox.targets():
            return ()
        found: list[DeadDelivery] = []
        for one in await self._outbox.dead():
            about = msgspec.json.decode(one.notice, type=Notice)
            shown = (one.id, one.target, about.kind, about.run, one.made_at, one.tries, one.problem)
            found.append(DeadDelivery(*shown))
        return tuple(found)

    async def replay(self, ids: tuple[int, ...] = ()) -> int:
        if not await self._outbox.targets():
            return 0
        count = await self._outbox.replay(ids)
        await self._note("WebhooksReplayed", count=count)
        return count


def _without_path(address: str) -> str:
    if address.startswith("mailto:"):
        return address
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}/" + ("…" if parts.path.strip("/") or parts.query else "")
