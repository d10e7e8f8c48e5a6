"""Sending notices: which events they are about, one try of a delivery, and what follows from a failed one."""

import logging
import smtplib
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup

from cloister.app.notices.text import KINDS, mail, notice_of, post
from cloister.app.settings import MailEntry, Settings
from cloister.core.addresses import normal_host
from cloister.core.errors import CloisterError, OutsideError, UserError
from cloister.core.events import RunFinished
from cloister.core.text import one_line
from cloister.egress.credentials import Unreadable, Vault, token_source
from cloister.egress.rules import forbidden, is_own, resolve
from cloister.log.api import Backbone
from cloister.log.sqlite.outbox import Delivery, Outbox, Target

if TYPE_CHECKING:
    from email.message import EmailMessage

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
SEND_SECONDS = 15.0
"""Limit of one try."""
TRIES = 18
"""Then a delivery is dead: about eight hours after the first."""
FIRST_SECONDS, LONGEST_SECONDS = 5.0, 3_600.0
PAGE = 1_000


class Dead(Exception):
    """The receiver wants no more tries."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Reads the log with a cursor of its own, stores a delivery for each target, and sends what is due."""

    outbox: Outbox
    backbone: Backbone
    vault: Vault
    settings: Settings
    trust: ssl.SSLContext | None = None
    """For receivers; None trusts the authorities of this machine."""
    first_seconds: float = FIRST_SECONDS
    look_seconds: float = LOOK_SECONDS
    now: Callable[[], float] = field(default=time.time)
    _busy: set[str] = field(default_factory=set[str])
    """Targets of which one delivery is under way: each waits for itself only."""

    async def run(self) -> None:
        """Send while the server lives. Never returns."""
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    more = await self.collect()
                    await self._start_due(tasks)
                except Exception as error:  # the server must outlive its notices
                    logger.warning("notices are not sent now: %s", error)
                    more = False
                if not more:
                    await anyio.sleep(self.look_seconds)

    async def collect(self) -> bool:
        """Store deliveries for new events of the log; true if there is more to read."""
        targets = await self.outbox.targets()
        if not targets:
            return False
        cursor = await self.outbox.cursor()
        end, events = await self.backbone.since(cursor, KINDS, PAGE)
        if end == cursor:
            return False
        new: list[tuple[str, str, bytes]] = []
        base = f"https://{self.settings.file.hosts[0]}" if self.settings.file.hosts else ""
        for event in events:
            wanted = [one for one in targets if one.made_at <= event.at]
            if not wanted or (isinstance(event.body, RunFinished) and event.body.again):
                continue
            key, notice = notice_of(event, await self.backbone.row(event.run), base)
            data = msgspec.json.encode(notice)
            new += [(one.name, key, data) for one in wanted if notice.kind in one.kinds]
        await self.outbox.put(new, end)
        return len(events) == PAGE

    async def _start_due(self, tasks: TaskGroup) -> None:
        """Send the due deliveries of each target that is not busy, in their order."""
        due = [one for one in await self.outbox.due(self.now()) if one.target not in self._busy]
        targets = {one.name: one for one in await self.outbox.targets()} if due else {}
        for one in due:
            if one.target in targets:
                self._busy.add(one.target)
                tasks.start_soon(self._send_to, targets[one.target])

    async def _send_to(self, target: Target) -> None:
        """Send what is due to one target, one after the other. Nothing that fails here ends another."""
        try:
            while due := [one for one in await self.outbox.due(self.now()) if one.target == target.name]:
                await self._try(target, due[0])
        except Exception as error:
            logger.warning("notices for %s are not sent now: %s", target.name, error)
        finally:
            self._busy.discard(target.name)

    async def _try(self, target: Target, delivery: Delivery) -> None:
        try:
            with anyio.fail_after(SEND_SECONDS):
                await (self._mail if target.format == "mail" else self._post)(target, delivery)
        except Dead as error:
            await self.outbox.failed(delivery, str(error), None)
        except TimeoutError:
            await self._again(delivery, f"no answer in {SEND_SECONDS:g} s")
        except Exception as error:  # an address or a password that a library does not take
            message = (
                error.message if isinstance(error, CloisterError) else str(error) or type(error).__name__
            )
            await self._again(delivery, message)
        else:
            await self.outbox.sent(delivery)

    async def _again(self, delivery: Delivery, problem: str) -> None:
        pause = min(self.first_seconds * 2**delivery.tries, LONGEST_SECONDS)
        last = delivery.tries + 1 >= TRIES
        if last:
            logger.warning("a notice for %s is given up: `cloister webhook dead` lists it", delivery.target)
        await self.outbox.failed(delivery, one_line(problem, 300), None if last else self.now() + pause)

    async def _post(self, target: Target, delivery: Delivery) -> None:
        import httpx2  # noqa: PLC0415  (most servers send none, and it takes long to load)

        body, headers = post(target, delivery, self.now())
        url = httpx2.URL(target.address)
        found = await judged(target.address, self.settings.file.private_webhooks)
        headers |= {"host": url.netloc.decode(), "user-agent": "cloister"}
        async with httpx2.AsyncClient(
            timeout=SEND_SECONDS, trust_env=False, follow_redirects=False, verify=self.trust or True
        ) as client:
            # To the address that was judged: a second lookup could give another one.
            request = client.build_request(
                "POST",
                url.copy_with(host=found),
                content=body,
                headers=headers,
                extensions={"sni_hostname": url.host},
            )
            try:
                answer = await client.send(request, stream=True)
                await answer.aclose()
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise _failed(f"{type(error).__name__} {error}".strip()) from None
        if answer.status_code == 410:
            raise Dead("it answered 410: it is gone")
        if not 200 <= answer.status_code < 300:
            raise _failed(f"it answered {answer.status_code}")

    async def _mail(self, target: Target, delivery: Delivery) -> None:
        entry = self.settings.file.mail
        if entry is None:
            raise UserError("no_mail", "The settings have no [mail] table with a mail server.")
        password = None
        if entry.password is not None:
            try:
                password = await self.vault.value(token_source("mail", entry.password))
            except (Unreadable, ValueError) as error:
                raise _failed(f"the mail server's password cannot be had: {error}") from None
        message = mail(target, delivery, entry.sender)
        await to_thread.run_sync(
            partial(_send_mail, entry, password, message, self.trust), abandon_on_cancel=True
        )


def _failed(why: str) -> OutsideError:
    return OutsideError("not_sent", why, retryable=True)


def _send_mail(
    entry: MailEntry, password: str | None, message: "EmailMessage", trust: ssl.SSLContext | None
) -> None:
    """Blocks. Raises `OSError`, `smtplib.SMTPException`."""
    host, _, port = entry.server.rpartition(":")
    trust = trust or ssl.create_default_context()
    secure = entry.tls == "tls"
    connected = (
        smtplib.SMTP_SSL(host, int(port), timeout=SEND_SECONDS, context=trust)
        if secure
        else smtplib.SMTP(host, int(port), timeout=SEND_SECONDS)
    )
    with connected as server:
        if entry.tls == "starttls":
            server.starttls(context=trust)
        if entry.user is not None and password is not None:
            server.login(entry.user, password)
        server.send_message(message)


async def judged(address: str, private: Sequence[str]) -> str:
    """An IP address behind a webhook's `address` that may be called. Raises `UserError` (`bad_webhook`), `OSError`."""
    try:
        parts = urlsplit(address)
        host, port = normal_host(parts.hostname or ""), parts.port or (443 if parts.scheme == "https" else 80)
        good = parts.scheme in ("http", "https") and "@" not in parts.netloc and not parts.fragment
    except ValueError:
        good, host, port, parts = False, "", 0, urlsplit("")
    if not good:
        raise UserError("bad_webhook", "A webhook's address is https://HOST/PATH, without a user name.")
    trusted = host in private or f"{host}:{port}" in private
    if parts.scheme == "http" and not trusted:
        raise UserError(
            "bad_webhook", "A webhook's address is https://…; http:// only for hosts in `private_webhooks`."
        )
    try:
        found = await resolve(host, port)
    except (OSError, UnicodeError):
        raise OutsideError("not_sent", f"{host} has no address", retryable=True) from None
    public = [one for one in found if trusted or not (forbidden(one) or is_own(one))]
    if not public:
        kind = forbidden(found[0]) or "this machine's own" if found else "no"
        raise UserError(
            "bad_webhook",
            f"{host} has a {kind} address, which webhooks may not call: `private_webhooks` in the settings names exceptions.",
        )
    return public[0]
