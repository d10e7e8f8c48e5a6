"""The tool `look`: pictures of pages by a real browser, seen by the model and kept with the run."""

import shutil
from contextlib import suppress

import pytest
from anyio import EndOfStream
from anyio.abc import SocketStream
from tests.egress.world import listening, read_until
from tests.runs.arena import ADD, FINISH, SUB, Arena, bash, of, script

from cloister.app.knowledge.look_tool import LookTool
from cloister.core.errors import UserError
from cloister.core.events import ToolReturned, ToolsOffered
from cloister.core.log import pictures_of
from cloister.log.attachments import Attachments
from cloister.runs.environments.pictures import address_of, picture_name
from cloister.sandbox.templates.building import About, Build
from cloister.sandbox.templates.catalog import Templates
from cloister.sandbox.templates.recipes import Packages

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"


def looking(page: str) -> str:
    return f'calls = [{{ tool = "look", page = "{page}", width = 320, height = 240 }}]'


async def test_a_model_sees_a_page_before_and_after_its_change(arena: Arena) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed: run scripts/install dev")
    store = Attachments(arena.root)
    arena.tools = (LookTool(store),)
    colours = iter(("red", "blue"))

    async def serve(stream: SocketStream) -> None:
        async with stream:
            with suppress(EndOfStream):  # a browser opens more connections than it uses
                head = await read_until(stream, b"\r\n\r\n")
                await answer(stream, head)

    async def answer(stream: SocketStream, head: bytes) -> None:
        wanted = head.startswith(b"GET / ")
        body = f"<body style='background:{next(colours)}'>shop".encode() if wanted else b""
        await stream.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
            + b"Content-Length: %d\r\n\r\n" % len(body)
            + body
        )

    async with listening(serve) as port:
        page = f"http://127.0.0.1:{port}/"
        sees = f'expect = "picture: image/png"\n{bash(f"{ADD}; {SUB}")}'
        text = script(looking(page), sees, looking(page), f'expect = "picture: image/png"\n{FINISH}')
        journal = arena.journal(arena.request(text, template="browser"))
        ended = await arena.run(journal)
    assert ended.outcome == "proven", ended.reason
    first, _, second, *_ = of(journal, ToolReturned)
    assert first.text.startswith("[Attached picture: 127-0-0-1-")
    assert (first.origin, second.origin) == ("tool", "tool"), (
        "a page of the sandbox itself is no text from outside"
    )
    ((name, pictures),) = pictures_of(journal.events, 0).items()
    assert name == f"127-0-0-1-{port}-320x240.png"
    before, after = (store.read(journal.events[0].run, one.sha256) for one in pictures)
    assert before and after and before != after
    assert before.startswith(PNG)


async def test_a_template_of_ones_own_with_the_browser_does_as_well(arena: Arena) -> None:
    templates = Templates(arena.root / "templates", "/usr/bin:/bin")

    async def make(work: Build) -> About:
        (work.rootfs / "opt/web").mkdir(parents=True)
        (work.rootfs / "opt/web/chromium").touch()
        return About(env={"PATH": "/opt/web:/bin"})

    for name in ("pages", "plain"):
        templates.keep_recipe(name, Packages(("chromium",)))
    await templates.build("pages", make, lambda fraction, note: None)
    arena.tools = (LookTool(Attachments(arena.root), templates),)
    offered: dict[str, bool] = {}
    for name in ("pages", "plain", "unknown"):
        journal = arena.journal(arena.request(script(FINISH), template=name))
        await arena.run(journal)
        offered[name] = "look" in {one.name for event in of(journal, ToolsOffered) for one in event.tools}
    assert offered == {"pages": True, "plain": False, "unknown": False}


async def test_a_run_without_the_browser_has_no_such_tool(arena: Arena) -> None:
    arena.tools = (LookTool(Attachments(arena.root)),)
    journal = arena.journal(arena.request(script(looking("a.html"), bash(f"{ADD}; {SUB}"), FINISH)))
    await arena.run(journal)
    assert "look" not in {one.name for offered in of(journal, ToolsOffered) for one in offered.tools}
    assert of(journal, ToolReturned)[0].text.startswith("There is no tool `look`.")


@pytest.mark.parametrize(
    "page",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "http://",
        "chrome://settings",
        "http://a:99999/",
        "http://[x",
    ],
)
def test_only_pages_and_files_are_looked_at(page: str) -> None:
    with pytest.raises(UserError, match="give an address"):
        address_of(page, "/work")


def test_a_file_is_one_of_the_repository_and_its_pictures_are_named_after_it() -> None:
    assert address_of("build/a b.html", "/work/shop") == "file:///work/shop/build/a%20b.html"
    assert picture_name("https://shop.example/a/b?c=1", 300, 200) == "shop-example-a-b-c-1-300x200.png"
    assert picture_name("../..", 300, 200) == "page-300x200.png"
