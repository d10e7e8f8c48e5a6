"""Notices about runs, at receivers of our own: signed, retried, kept over a kill, given up, sent again; also as mail."""

import base64
import hashlib
import hmac
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import msgspec
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from tests.server.auth.certificates import certificates

from cloister.app.notices.sender import TRIES, Sender
from cloister.app.settings import MailEntry, read_settings
from cloister.app.tokens import Caller
from cloister.app.verbs.local import Parts
from cloister.app.verbs.local_webhooks import LocalWebhooks
from cloister.app.verbs.webhooks import NewWebhook
from cloister.core import events as e
from cloister.core.errors import UserError
from cloister.core.ids import RunId, new_owner_id
from cloister.core.requests import NewRun
from cloister.egress.credentials import Vault
from cloister.log.sqlite.backbone import SqliteBackbone, open_backbone
from cloister.log.sqlite.outbox import OUTBOX_FILE, Outbox, Target

pytestmark = pytest.mark.anyio

EVIL = "x <!channel> @all <https://evil.example|here> [a](https://evil.example) `b` *c*\r\nBcc: eve@evil.example\n\x1b]0;\u202e"
WAIT_SECONDS = 30


class Got(NamedTuple):
    """One request that a receiver got."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """An HTTP server that answers with the next of `answers`, and 204 after them."""

    def __init__(self, answers: Iterator[int]) -> None:
        self.got: SimpleQueue[Got] = SimpleQueue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.put(Got(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(next(answers, 204))
                self.send_header("location", "http://169.254.169.254/")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"

    async def next(self) -> Got:
        return await anyio.to_thread.run_sync(lambda: self.got.get(timeout=WAIT_SECONDS))


@contextmanager
def receiving(*answers: int) -> Generator[Receiver]:
    receiver = Receiver(iter(answers))
    thread = Thread(target=receiver.server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


class Rig(NamedTuple):
    """A log, the verbs, and a sender that is not running yet."""

    log: SqliteBackbone
    verbs: LocalWebhooks
    sender: Sender

    async def run(self, prompt: str = "do it", repo: str = "/somewhere") -> tuple[RunId, Callable[..., Any]]:
        run, _ = await self.log.admit(NewRun(prompt, repo), "ann")
        fence = await self.log.claim(new_owner_id(), run)
        assert fence is not None

        async def append(*bodies: e.AnyBody) -> None:
            await self.log.append(fence, bodies)

        return run, append


@asynccontextmanager
async def rigged(data: Path, *hosts: str, mail: MailEntry | None = None, **more: Any) -> AsyncGenerator[Rig]:
    data.mkdir(exist_ok=True)  # noqa: ASYNC240
    settings = read_settings({"USER": "root", "SMTP": "a-password-of-mail"}, data)
    file = msgspec.structs.replace(
        settings.file, private_webhooks=hosts, mail=mail, hosts=("cloister.example.org",)
    )
    settings = msgspec.structs.replace(settings, file=file, variables={"SMTP": "a-password-of-mail"})
    async with open_backbone(settings.log_path, owner_lives=lambda _: True) as log:
        verbs = LocalWebhooks(Parts(settings, log), Caller("ann", "admin"))
        sender = Sender(
            Outbox(data / OUTBOX_FILE), log, Vault(settings.variables), settings, look_seconds=0.02, **more
        )
        yield Rig(log, verbs, sender)


@asynccontextmanager
async def sending(sender: Sender) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sender.run)
        yield
        tasks.cancel_scope.cancel()


ENDED = e.RunFinished("proven", "all checks pass", 0)


async def test_a_notice_is_signed_as_the_standard_says(tmp_path: Path) -> None:
    with receiving() as receiver:
        async with rigged(tmp_path / "data", receiver.host) as rig:
            before, finish_before = await rig.run()
            await finish_before(ENDED)
            made = await rig.verbs.add(
                NewWebhook("team", f"http://{receiver.host}/in?a=b", kinds=("ended", "stuck"))
            )
            run, append = await rig.run("fix the parser")
            await append(e.AskRaised("a-1", 0, "bash:git push", "", 2e9))
            await append(e.StuckNoticed(0, "repeats", "the same twice", 3), ENDED)
            async with sending(rig.sender):
                stuck, ended = [await receiver.next() for _ in range(2)]
    assert json.loads(stuck.body)["data"]["reason"] == "repeats: the same twice"
    told = json.loads(ended.body)
    assert (ended.path, told["type"], told["data"]["run"]) == ("/in?a=b", "run.ended", run)
    assert before != run, "what was before the webhook is not told"
    assert told["data"]["url"] == f"https://cloister.example.org/runs/{run}"
    assert (told["data"]["prompt"], told["data"]["outcome"], told["data"]["who"]) == (
        "fix the parser",
        "proven",
        "ann",
    )
    head = ended.headers
    signed = f"{head['webhook-id']}.{head['webhook-timestamp']}.".encode() + ended.body
    key = base64.b64decode(made.secret.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert head["webhook-signature"] == f"v1,{wanted}"
    assert head["webhook-id"] != stuck.headers["webhook-id"]
    assert head["host"] == receiver.host


async def test_a_receiver_that_fails_gets_the_same_notice_again_and_a_redirect_is_a_failure(
    tmp_path: Path,
) -> None:
    with receiving(500, 302) as receiver:
        async with rigged(tmp_path / "data", receiver.host, first_seconds=0.01) as rig:
            await rig.verbs.add(NewWebhook("team", f"http://{receiver.host}/"))
            _, append = await rig.run()
            await append(ENDED)
            async with sending(rig.sender):
                tries = [await receiver.next() for _ in range(3)]
                await idle(rig)
        assert receiver.got.empty()
    assert len({one.headers["webhook-id"] for one in tries}) == 1


async def idle(rig: Rig) -> None:
    with anyio.fail_after(WAIT_SECONDS):
        while any(one.waiting for one in await rig.verbs.list()):
            await anyio.lowlevel.checkpoint()


async def test_a_notice_is_given_up_listed_and_sent_again_on_demand(tmp_path: Path) -> None:
    with receiving(410) as receiver, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        async with rigged(tmp_path / "data", receiver.host, nobody, first_seconds=0.0) as rig:
            await rig.verbs.add(NewWebhook("gone", f"http://{receiver.host}/"))
            await rig.verbs.add(NewWebhook("nobody", f"http://{nobody}/"))
            run, append = await rig.run()
            await append(ENDED)
            async with sending(rig.sender):
                first = await receiver.next()
                await idle(rig)
                dead = {one.webhook: one for one in await rig.verbs.dead()}
                assert {(one.kind, one.run) for one in dead.values()} == {("ended", run)}
                assert (dead["gone"].tries, dead["gone"].problem) == (1, "it answered 410: it is gone")
                assert (dead["nobody"].tries, "Connect" in dead["nobody"].problem) == (TRIES, True)
                assert await rig.verbs.replay((dead["gone"].id,)) == 1
                again = await receiver.next()
                await idle(rig)
            assert first.headers["webhook-id"] == again.headers["webhook-id"]
            assert [one.webhook for one in await rig.verbs.dead()] == ["nobody"]


async def test_a_slow_or_dead_receiver_delays_no_other(tmp_path: Path) -> None:
    with receiving() as receiver, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        async with rigged(tmp_path / "data", receiver.host, mute) as rig:
            await rig.verbs.add(NewWebhook("mute", f"http://{mute}/"))
            await rig.verbs.add(NewWebhook("fine", f"http://{receiver.host}/"))
            _, append = await rig.run()
            await append(ENDED)
            async with sending(rig.sender):
                for _ in range(5):  # while the first delivery to the mute one hangs
                    assert (await receiver.next()).path == "/"
                    await append_later(rig)
                tried = await rig.sender.outbox.due(rig.sender.now())
                assert [(one.target, one.tries) for one in tried if one.target == "mute"] == [("mute", 0)]


async def test_a_target_that_a_library_does_not_take_delays_no_other(tmp_path: Path) -> None:
    mail = MailEntry("127.0.0.1:9", "Cloister <a@b.example>")
    with receiving() as receiver:
        async with rigged(tmp_path / "data", receiver.host, "127.0.0.1", mail=mail) as rig:
            for name, address in (("lines", "https://host.example/x\n"), ("dots", "mailto:a..b@example.org")):
                with pytest.raises(UserError, match=r"address"):
                    await rig.verbs.add(NewWebhook(name, address))
                # As an earlier version stored it.
                made = Target(
                    name, address, "mail" if name == "dots" else "json", ("ended",), "whsec_AAAA", 0.0, "ann"
                )
                await rig.sender.outbox.add(made)
            await rig.verbs.add(NewWebhook("fine", f"http://{receiver.host}/"))
            _, append = await rig.run()
            await append(ENDED)
            async with sending(rig.sender):
                assert (await receiver.next()).path == "/"
                await append_later(rig)
                assert (await receiver.next()).path == "/"


async def append_later(rig: Rig) -> None:
    _, append = await rig.run("another")
    await append(ENDED)


async def test_an_address_that_became_private_is_not_called(tmp_path: Path) -> None:
    with receiving() as receiver:
        async with rigged(tmp_path / "data", receiver.host) as rig:
            await rig.verbs.add(NewWebhook("team", f"http://{receiver.host}/"))
        async with rigged(tmp_path / "data", first_seconds=0.0) as rig:
            await rig.verbs.test("team")
            async with sending(rig.sender):
                await idle(rig)
            (dead,) = await rig.verbs.dead()
            assert "private_webhooks" in dead.problem
        assert receiver.got.empty()


async def test_text_of_others_makes_no_mention_link_or_markup_in_a_chat(tmp_path: Path) -> None:
    with receiving() as receiver:
        async with rigged(tmp_path / "data", receiver.host) as rig:
            await rig.verbs.add(NewWebhook("chat", f"http://{receiver.host}/", "slack"))
            run, append = await rig.run(EVIL, "https://host.example/a`<!here>`/b")
            await append(e.QuestionAsked("q-1", 0, "c-1", EVIL, ("yes", "no"), "no", 2e9))
            async with sending(rig.sender):
                told = json.loads((await receiver.next()).body)
    lines = told["text"].split("\n")
    assert lines[0] == f"*{run} asks a person*"
    quoted = [
        line.partition(": ")[2] for line in lines if line.startswith(("Prompt", "Repository", "Reason"))
    ]
    assert len(quoted) == 3
    for text in quoted:
        assert text.startswith("`") and text.endswith("`") and text.count("`") == 2
        assert "<" not in text and "\x1b" not in text and "\u202e" not in text
    assert [line for line in lines if "http" in line and line not in lines[1:5]] == [
        f"https://cloister.example.org/runs/{run}"
    ]
    assert told["unfurl_links"] is False


class Box:
    """Keeps the messages that a mail server takes."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[EmailMessage] = SimpleQueue()

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802
        message: Any = message_from_bytes(envelope.content, policy=policy.default)
        message["X-Recipients"] = ",".join(envelope.rcpt_tos)
        self.messages.put(message)
        return "250 taken"


async def test_a_mail_holds_what_happened_and_no_header_or_link_of_others(tmp_path: Path) -> None:
    def admitted(
        _server: object, _session: object, _envelope: object, _how: str, data: LoginPassword
    ) -> AuthResult:
        return AuthResult(success=(data.login, data.password) == (b"cloister", b"a-password-of-mail"))

    box, made = Box(), certificates(tmp_path / "tls", "localhost")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    how: dict[str, Any] = {"tls_context": context, "require_starttls": True, "auth_required": True}
    server = Controller(box, hostname="127.0.0.1", port=port, authenticator=admitted, **how)
    server.start()
    entry = MailEntry(f"localhost:{port}", "Cloister <bot@example.org>", "cloister", "env:SMTP")
    trust = ssl.create_default_context(cafile=made.ca)
    try:
        async with rigged(tmp_path / "data", mail=entry, trust=trust) as rig:
            await rig.verbs.add(NewWebhook("ann", "mailto:ann@example.org", kinds=("ended",)))
            run, append = await rig.run(EVIL)
            await append(e.RunFinished("failed", EVIL, None))
            async with sending(rig.sender):
                message = await anyio.to_thread.run_sync(lambda: box.messages.get(timeout=WAIT_SECONDS))
    finally:
        server.stop()
    assert (message["subject"], message["x-recipients"]) == (
        f"[Cloister] {run} ended: failed",
        "ann@example.org",
    )
    assert (message["from"], message["bcc"]) == ("Cloister <bot@example.org>", None)
    text = message.get_content()
    assert message.get_content_type() == "text/plain"
    assert [line for line in text.splitlines() if "://" in line] == [
        f"https://cloister.example.org/runs/{run}"
    ]
    assert "https[:]//evil" in text and "\x1b" not in text and "\nBcc" not in text


def test_a_deliverys_settings_are_checked(tmp_path: Path) -> None:
    for text in ('server = "mail"\nfrom = "A <a@b.c>"', 'server = "mail:25"\nfrom = "nobody"',
                 'server = "mail:25"\nfrom = "A <a@b.c>"\nuser = "x"'):  # fmt: skip
        (tmp_path / "config.toml").write_text(f"[mail]\n{text}\n")
        with pytest.raises(Exception, match="mail"):
            read_settings({}, tmp_path)


async def test_a_notice_survives_kill_9_of_the_server_that_was_to_send_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with receiving(503) as receiver:
        data.mkdir()
        (data / "config.toml").write_text(f'port = 0\nprivate_webhooks = ["{receiver.host}"]\n')
        env = {"PATH": os.environ["PATH"], "CLOISTER_DATA_DIR": str(data), "USER": "root"}

        def cloister(*args: str) -> "subprocess.CompletedProcess[str]":
            argv = [sys.executable, "-m", "cloister", *args]
            return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)

        def through_a_kill() -> None:
            assert cloister("serve", "--background").returncode == 0
            pid = int(json.loads((data / "server.json").read_text())["pid"])
            added = cloister("webhook", "add", "team", f"http://{receiver.host}/")
            assert added.stdout.startswith("whsec_"), added.stderr
            assert cloister("webhook", "test", "team").returncode == 0
            assert receiver.got.get(timeout=WAIT_SECONDS).path == "/"
            os.kill(pid, signal.SIGKILL)
            assert "  1 " in cloister("webhook", "ls").stdout
            assert cloister("serve", "--background").returncode == 0
            try:
                again = receiver.got.get(timeout=WAIT_SECONDS)
                assert json.loads(again.body)["type"] == "run.test"
            finally:
                assert cloister("serve", "--stop").returncode == 0

        await anyio.to_thread.run_sync(through_a_kill)
        with pytest.raises(Empty):
            receiver.got.get_nowait()
