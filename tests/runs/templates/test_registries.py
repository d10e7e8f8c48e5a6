"""A registry leads skopeo to further addresses: none of this machine is reached, whoever named the registry."""

import json
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketStream
from tests.egress.world import PUBLIC, World, listening, over_tls

from cloister.core.errors import HostError
from cloister.core.requests import Quota
from cloister.egress.rules import Outside
from cloister.forge import Forges
from cloister.runs.images.registries import judged_network
from cloister.runs.templates import Workshop
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.templates import oci
from cloister.sandbox.templates.building import Build
from cloister.sandbox.templates.recipes import Devcontainer, Dockerfile, Oci
from cloister.testing.samples import SampleRepo, busybox, layer, layout, push

pytestmark = pytest.mark.anyio

PATH = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")


@pytest.fixture
def work(tmp_path: Path) -> Build:
    home = tmp_path / "templates" / "build"
    home.mkdir(parents=True)
    return Build("tool", home, PATH, lambda _, note: None, tmp_path / "log")


@pytest.fixture
async def canary() -> AsyncGenerator[tuple[int, list[str]]]:
    """A server on this machine's loopback, and who came."""
    visits: list[str] = []

    async def serve(stream: SocketStream) -> None:
        async with stream:
            visits.append("came")

    async with listening(serve) as port:
        yield port, visits


def answering(answer: Callable[[bytes], bytes]) -> Callable[[ByteStream], Awaitable[None]]:
    async def serve(stream: ByteStream) -> None:
        async with stream:
            head = await stream.receive()
            if head[:1].isalpha():  # a client tries TLS first
                await stream.send(answer(head.partition(b"\r\n")[0]))

    return serve


def reply(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


PLACES = (
    "https://127.0.0.1:{port}/x",
    "http://127.0.0.1:{port}/x",
    "http://localhost:{port}/x",
    "https://[::1]:{port}/x",
    "http://0.0.0.0:{port}/x",
    "https://inside.test:{port}/x",
    "http://inside.test:{port}/x",
    "http://mixed.test:{port}/x",
    "http://169.254.169.254/x",
    "http://metadata.test/x",
    "http://127.1:{port}/x",
    "http://2130706433:{port}/x",
)


@pytest.mark.parametrize("place", PLACES)
async def test_neither_a_token_server_nor_a_redirect_leads_to_this_machine(
    work: Build, canary: tuple[int, list[str]], place: str
) -> None:
    port, visits = canary
    at = place.format(port=port)
    digest = "sha256:" + "a" * 64
    layers = json.dumps(
        {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": [],
         "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": 2}}
    ).encode()  # fmt: skip
    kind = "Content-Type: application/vnd.oci.image.manifest.v1+json"

    def asks_for_a_token(line: bytes) -> bytes:
        return reply("401 Unauthorized", b"", f'WWW-Authenticate: Bearer realm="{at}",service="x"')

    def redirects(line: bytes) -> bytes:
        if b"/manifests/" in line:
            return reply("200 OK", layers, kind)
        return (
            reply("307 Temporary Redirect", b"", f"Location: {at}") if b"/blobs/" in line else reply("200 OK")
        )

    for answer, named in ((asks_for_a_token, ""), (redirects, "docker://reg.test/tool:v1")):
        seen: list[bytes] = []

        def heard(line: bytes, answer: Callable[[bytes], bytes] = answer, seen: list[bytes] = seen) -> bytes:
            seen.append(line)
            return answer(line)

        world = World()
        for name, addresses in (("inside.test", ["127.0.0.1"]), ("mixed.test", [PUBLIC, "127.0.0.1"]),
                                ("metadata.test", ["169.254.169.254"])):  # fmt: skip
            world.names[name] = addresses
            world.listeners |= dict.fromkeys(set(addresses) - {PUBLIC}, port)
        async with listening(over_tls(world, "reg.test", answering(heard))) as listener:
            world.has("reg.test", listener)
            async with judged_network(work.note, world.outside, named=named) as network:
                with pytest.raises(HostError):
                    await oci.fetch(
                        work, "docker://reg.test/tool:v1", work.home / "image", tls=False, network=network
                    )
        assert seen, "the registry was asked"
        assert set(world.dialled) == {PUBLIC}
    assert visits == []


async def test_an_image_is_downloaded_through_the_judged_network(
    work: Build, registry: str, tmp_path: Path
) -> None:
    image = layout(tmp_path / "made", layer(*busybox()), Env=["PATH=/bin", "FROM_IMAGE=yes"])
    push(image, "--dest-tls-verify=false", f"docker://{registry}/some/tool:v1")
    world = World()
    world.has("reg.test", int(registry.rpartition(":")[2]))
    async with judged_network(work.note, world.outside) as network:
        source = await oci.resolve(work, "docker://reg.test/some/tool:v1", tls=False, network=network)
        found = await oci.fetch(work, source, work.home / "image", tls=False, network=network)
    assert found.env["FROM_IMAGE"] == "yes" and len(found.layers) == 1
    assert "allow reg.test:80" in work.log.read_text()


def namespace() -> str:
    return str(Path("/proc/self/ns/net").readlink())


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_the_namespace_has_nothing_but_the_proxy_and_this_process_stays_where_it_is(
    work: Build, canary: tuple[int, list[str]]
) -> None:
    port, visits = canary
    before, opened = namespace(), descriptors()
    async with judged_network(work.note) as network:
        look = [*network.enter(work), "/bin/sh", "-c", "readlink /proc/self/ns/net; cat /proc/net/dev"]
        said = (await anyio.run_process(look)).stdout.decode()
        assert before not in said
        assert [line.partition(":")[0].strip() for line in said.splitlines()[3:]] == ["lo"]
        dial = [*network.enter(work), "/bin/bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"]
        assert (await anyio.run_process(dial, check=False)).returncode != 0
    assert visits == [] and (namespace(), descriptors()) == (before, opened)
    with socket.create_connection(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.9.9.9", "LOCALHOST", "here.test"])
async def test_a_registry_of_this_machine_that_the_operator_names_leads_nowhere_else(
    work: Build, canary: tuple[int, list[str]], host: str
) -> None:
    port, visits = canary
    asked: list[bytes] = []

    def answer(line: bytes) -> bytes:
        asked.append(line)
        return reply("307 Temporary Redirect", b"", f"Location: http://127.0.0.1:{port}/x")

    async def dial(address: str, number: int) -> ByteStream:
        return await anyio.connect_tcp("127.0.0.1", number)

    async def resolve(name: str, number: int) -> list[str]:
        return ["127.0.0.1"]

    outside = Outside(resolve, dial)
    async with listening(answering(answer)) as number:
        image = f"docker://{host}:{number}/tool:v1"
        for named in (image, ""):
            asked.clear()
            async with judged_network(work.note, outside, named=named) as network:
                with pytest.raises(HostError):
                    await oci.resolve(work, image, tls=False, network=network)
            assert bool(asked) == bool(named)
    assert visits == []


async def test_an_image_of_a_registry_on_this_machine_is_downloaded(
    work: Build, registry: str, tmp_path: Path
) -> None:
    image = layout(tmp_path / "made", layer(*busybox()), Env=["PATH=/bin", "FROM_IMAGE=yes"])
    push(image, "--dest-tls-verify=false", f"docker://{registry}/some/tool:v1")
    source = f"docker://localhost:{registry.rpartition(':')[2]}/some/tool:v1"
    async with judged_network(work.note, named=source) as network:
        found = await oci.fetch(work, source, work.home / "image", tls=False, network=network)
    assert found.env["FROM_IMAGE"] == "yes"


async def test_every_image_is_downloaded_that_way(
    own_host: ContainerHost, own_dir: Path, tmp_path: Path
) -> None:
    shop = Workshop(own_host.templates, own_host, Forges(), None, Quota(), own_dir / "repositories")
    repo = SampleRepo(tmp_path / "repo")
    repo.write(".devcontainer/devcontainer.json", '{"image": "reg.invalid/tool:v1"}')
    repo.write("Dockerfile", "FROM reg.invalid/tool:v1\n")
    repo.commit()
    recipes = {
        "dev": Devcontainer(str(repo.path)),
        "plain": Devcontainer(str(repo.path), tls=False),
        "mine": Oci("reg.invalid/tool:v1"),
        "file": Dockerfile(str(repo.path), tls=False),
    }
    for name, recipe in recipes.items():
        shop.templates.keep_recipe(name, recipe)
        with pytest.raises(HostError):
            await shop.prepare(name, lambda _, note: None)
        log = shop.templates.log(f"{name}-image" if isinstance(recipe, Devcontainer) else name)
        assert "allow reg.invalid:443" in log
