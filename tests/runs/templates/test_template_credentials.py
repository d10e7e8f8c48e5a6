"""Recipes refer to credentials: a build uses them at the proxy, and their values are in nothing that it makes."""

import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from anyio.abc import ByteStream
from tests.egress.world import World, listening, over_tls, read_until

from cloister.core.errors import CloisterError
from cloister.core.events import ConnectionDecided, RequestDecided
from cloister.core.ids import SandboxId, new_owner_id
from cloister.core.requests import CredentialEntry, Quota
from cloister.egress.credentials import Vault, read_credentials
from cloister.egress.factory import Doorway, Through
from cloister.egress.rules import DoorEvent
from cloister.forge import Forges
from cloister.runs.templates import Workshop
from cloister.sandbox.api import SNAPSHOT_PREFIX, SandboxSpec, keep
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.templates.building import Built
from cloister.sandbox.templates.recipes import Devcontainer, Dockerfile, Oci, Snapshot
from cloister.testing.samples import SampleRepo, busybox, folder, layer, layout, programs

pytestmark = pytest.mark.anyio

STAND_IN = "{{secret:forge}}"
CURL = 'curl -sS -H "Authorization: Bearer $TOKEN"'
# The certificates of the proxy are put into an image that has a shell, so the steps that connect are a stage of their own.
HEAD = "FROM scratch AS base\nADD root.tar /\nFROM base\nCOPY salt /salt\n"


@dataclass
class Shop:
    """A workshop behind a proxy with one credential, and the two servers that its builds reach."""

    workshop: Workshop
    context: Path
    token: Path
    seen: dict[str, list[bytes]] = field(default_factory=lambda: {"api.test": [], "other.test": []})
    log: list[DoorEvent] = field(default_factory=list[DoorEvent])
    told: list[str] = field(default_factory=list[str])

    @property
    def value(self) -> str:
        return self.token.read_text()

    def tell(self, _: float | None, note: str) -> None:
        self.told.append(note)

    async def build(self, steps: str, args: dict[str, str], **more: object) -> Built:
        (self.context / "Dockerfile").write_text(HEAD + steps)
        recipe = Dockerfile(str(self.context), args=args, **{"network": True, **more})  # type: ignore[arg-type]
        self.workshop.templates.keep_recipe("built", recipe)
        return await self.workshop.prepare("built", self.tell, again=True)


@pytest.fixture
async def shop(own_host: ContainerHost, own_dir: Path, tmp_path: Path) -> AsyncGenerator[Shop]:
    world = World("api.test:443", "other.test:443", "credential:forge")
    context = tmp_path / "context"
    context.mkdir()
    made = layer(*busybox(), folder("tmp", mode=0o1777), *programs(Path("/usr/bin/curl")))
    (context / "root.tar").write_bytes(made)
    (context / "salt").write_text(secrets.token_hex(8))
    token = tmp_path / "token"
    token.write_text(f"ghp_{secrets.token_hex(18)}")
    entry = CredentialEntry("forge", f"file:{token}", "api.test")
    doorway = Doorway(credentials=read_credentials((entry,), "test"), vault=Vault({}), outside=world.outside)
    made_shop: list[Shop] = []

    async def record(_: SandboxId, body: DoorEvent) -> None:
        made_shop[0].log.append(body)

    workshop = Workshop(
        own_host.templates,
        Through(own_host, doorway.outfit(world.policy, record)),
        Forges(),
        None,
        Quota(),
        own_dir / "repositories",
        credentials=frozenset({"forge"}),
    )
    made_shop.append(Shop(workshop, context, token))

    def server(host: str) -> object:
        async def answer(stream: ByteStream) -> None:
            head = await read_until(stream, b"\r\n\r\n")
            made_shop[0].seen[host].append(head)
            size = str(len(head)).encode()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: " + size + b"\r\n\r\n" + head)

        return over_tls(world, host, answer)

    async with listening(server("api.test")) as api, listening(server("other.test")) as other:  # type: ignore[arg-type]
        world.has("api.test", api)
        world.has("other.test", other, "93.184.216.35")
        yield made_shop[0]


def files_with(value: bytes, top: Path) -> list[str]:
    """The names and contents below `top` that hold a value; links are not followed."""
    found: list[str] = []
    for directory, folders, names in os.walk(top):
        found += [name for name in (*folders, *names) if value in os.fsencode(name)]
        for name in names:
            path = Path(directory, name)
            if path.is_symlink():
                found += [str(path)] if value in os.fsencode(path.readlink()) else []
            elif path.is_file() and value in path.read_bytes():
                found.append(str(path))
    return found


async def test_a_build_argument_refers_to_a_credential_that_only_its_host_receives(shop: Shop) -> None:
    steps = (
        "ARG TOKEN\n"
        f"RUN {CURL} https://api.test/private > /reply\n"
        f"RUN {CURL} -k https://other.test/public > /elsewhere\n"
        'RUN echo "$TOKEN" > /argument\n'
    )
    built = await shop.build(steps, {"TOKEN": "credential:forge"})
    assert f"Authorization: Bearer {shop.value}".encode() in shop.seen["api.test"][0]
    assert f"Authorization: Bearer {STAND_IN}".encode() in shop.seen["other.test"][0]
    assert (built.rootfs / "argument").read_text().strip() == STAND_IN
    hidden = "*" * len(shop.value)
    assert f"Authorization: Bearer {hidden}" in (built.rootfs / "reply").read_text(), "the server repeated it"
    decided = [body for body in shop.log if isinstance(body, RequestDecided) and body.credential]
    assert [(body.path, body.credential) for body in decided] == [("/private", "forge")]


async def test_the_value_of_a_credential_is_in_nothing_that_a_build_leaves(
    shop: Shop, own_host: ContainerHost, own_dir: Path, tmp_path: Path
) -> None:
    steps = (
        "ARG TOKEN\n"
        "ENV KEPT=$TOKEN\n"
        f"RUN {CURL} -v https://api.test/private > /reply; env > /environment\n"
        "WORKDIR /work-$TOKEN\n"
        "RUN env; tr '\\0' '\\n' < /proc/self/environ > /process; cat /reply\n"
        f"RUN {CURL} https://api.test/private | tee /again\n"
    )
    built = await shop.build(steps, {"TOKEN": "credential:forge"}, env={"LATER": "credential:forge"})
    sent = [head for head in shop.seen["api.test"] if shop.value.encode() in head]
    assert len(sent) == 2, "the build did use the value"
    assert built.about.env["KEPT"] == built.about.env["LATER"] == STAND_IN
    assert STAND_IN in (built.rootfs / "process").read_text()
    cached = [info for info in await own_host.snapshots() if (info.name or "").startswith("step-")]
    kept = tmp_path / "kept"
    kept.mkdir()
    for info in cached:
        async with own_host.open(SandboxSpec(template=f"{SNAPSHOT_PREFIX}{info.id}")) as sandbox:
            await keep(sandbox, kept / info.id)
    assert len(cached) >= 4
    value = shop.value.encode()
    for spelling in (value, value.hex().encode(), value[4:]):
        assert files_with(spelling, own_dir) == []
        assert files_with(spelling, kept) == []
    assert shop.value not in shop.workshop.templates.log("built")
    assert shop.value not in "\n".join([*shop.told, *map(repr, shop.log), repr(cached), repr(built)])
    assert STAND_IN in shop.workshop.templates.log("built")


async def test_a_new_value_uses_the_cached_steps_and_another_credential_does_not(shop: Shop) -> None:
    steps = "ARG TOKEN\nRUN echo $TOKEN > /argument\n"
    await shop.build(steps, {"TOKEN": "credential:forge"})
    shop.token.write_text(f"ghp_{secrets.token_hex(18)}")
    await shop.build(steps, {"TOKEN": "credential:forge"})
    assert "cached: RUN" in shop.workshop.templates.log("built")
    both = Shop(
        Workshop(
            shop.workshop.templates, shop.workshop.host, Forges(), None, Quota(), shop.workshop.repositories,
            credentials=frozenset({"forge", "other"}),
        ),
        shop.context,
        shop.token,
    )  # fmt: skip
    built = await both.build(steps, {"TOKEN": "credential:other"})
    assert "cached: RUN" not in shop.workshop.templates.log("built")
    assert (built.rootfs / "argument").read_text().strip() == "{{secret:other}}"


async def test_without_a_rule_for_the_credential_the_proxy_refuses_the_request(
    shop: Shop, own_host: ContainerHost
) -> None:
    world = World("api.test:443", denied=["credential:forge"])
    world.has("api.test", 1)

    async def record(_: SandboxId, body: DoorEvent) -> None:
        shop.log.append(body)

    entry = CredentialEntry("forge", f"file:{shop.token}", "api.test")
    doorway = Doorway(credentials=read_credentials((entry,), "test"), outside=world.outside)
    shop.workshop = Workshop(
        own_host.templates, Through(own_host, doorway.outfit(world.policy, record)), Forges(), None, Quota(),
        shop.workshop.repositories, credentials=frozenset({"forge"}),
    )  # fmt: skip
    built = await shop.build(
        f"ARG TOKEN\nRUN {CURL} https://api.test/x > /reply\n", {"TOKEN": "credential:forge"}
    )
    assert "The credential forge may not be used" in (built.rootfs / "reply").read_text()
    assert shop.seen["api.test"] == []
    assert not any(isinstance(body, ConnectionDecided) and body.effect == "allow" for body in shop.log)


async def test_the_arguments_of_a_devcontainer_refer_to_credentials_too(shop: Shop, tmp_path: Path) -> None:
    repo = SampleRepo(tmp_path / "repo")
    text = '{"build": {"dockerfile": "Dockerfile", "args": {"TOKEN": "credential:forge"}}}'
    repo.write(".devcontainer/devcontainer.json", text)
    repo.write(".devcontainer/Dockerfile", f"{HEAD}ARG TOKEN\nRUN {CURL} https://api.test/private\n")
    for name in ("root.tar", "salt"):
        (repo.path / ".devcontainer" / name).write_bytes((shop.context / name).read_bytes())
    repo.commit()
    shop.workshop.templates.keep_recipe("dev", Devcontainer(str(repo.path), network=True))
    await shop.workshop.prepare("dev", shop.tell)
    assert f"Bearer {shop.value}".encode() in shop.seen["api.test"][0]
    assert shop.value not in shop.workshop.templates.log("dev-image")


async def test_the_environment_of_a_template_refers_to_a_credential_for_its_sandboxes(
    shop: Shop, own_host: ContainerHost, tmp_path: Path
) -> None:
    image = layout(tmp_path / "image", (shop.context / "root.tar").read_bytes(), Env=["PATH=/usr/bin:/bin"])
    env = {"TOKEN": "credential:forge", "PLAIN": "credentials:forge"}
    templates = shop.workshop.templates
    templates.keep_recipe("tools", Oci(str(image), env=env))
    built = await shop.workshop.prepare("tools", shop.tell)
    assert built.about.env == {"PATH": "/usr/bin:/bin", "TOKEN": STAND_IN, "PLAIN": "credentials:forge"}
    kept = f"tools-{new_owner_id()}"  # other sessions use the same store
    async with own_host.open(SandboxSpec(template="tools")) as sandbox:
        await sandbox.snapshot(kept)
    templates.keep_recipe("again", Snapshot(kept, env={"SECOND_TOKEN": "credential:forge"}))
    about = (await shop.workshop.prepare("again", shop.tell)).about
    assert about.env["SECOND_TOKEN"] == about.env["TOKEN"] == STAND_IN


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"TOKEN": "credential:unknown"}, ("unknown", "[[credential]]")),
        ({"TOKEN": "credential:"}, ("TOKEN", "credential:NAME")),
        ({"PLAIN": "credential: forge"}, ("PLAIN", "credential:NAME")),
        ({"PLAIN": "credential:forge\n"}, ("PLAIN", "credential:NAME")),
        ({"TOKEN": "Bearer credential:forge"}, ("TOKEN", "credential:NAME")),
        ({"TOKEN": "s3cr3t-value"}, ("TOKEN", "credential:NAME")),
    ],
)
async def test_a_reference_that_leads_nowhere_is_refused_in_one_sentence(
    shop: Shop, args: dict[str, str], words: Sequence[str]
) -> None:
    with pytest.raises(CloisterError) as refused:
        await shop.build("ARG TOKEN\n", args)
    assert all(word in refused.value.message for word in words) and "\n" not in refused.value.message
    assert "s3cr3t" not in refused.value.message


async def test_a_reference_in_a_build_without_a_network_is_refused(shop: Shop) -> None:
    with pytest.raises(CloisterError) as refused:
        await shop.build("ARG TOKEN\n", {"TOKEN": "credential:forge"}, network=False)
    assert refused.value.code == "bad_template" and "network = true" in refused.value.message


async def test_the_form_with_braces_is_a_reference_too(shop: Shop) -> None:
    built = await shop.build("ARG TOKEN\nRUN echo $TOKEN > /argument\n", {"TOKEN": STAND_IN})
    assert (built.rootfs / "argument").read_text().strip() == STAND_IN
    with pytest.raises(CloisterError):
        await shop.build("ARG TOKEN\n", {"TOKEN": "{{secret:unknown}}"})
