"""The files of the pages: what is sent with them, and how large they are."""

import gzip
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
from tests.server.conftest import Served

from cloister.app.people.projects import people_in
from cloister.server.routes.pages import ADDRESSES, page_dir

ROOT = Path(__file__).parents[3]
FIRST_LOAD_BYTES = 150 * 1024


@pytest.fixture(autouse=True)
def built() -> Path:
    """The built pages, as `make test` builds them."""
    if not (page_dir() / "index.html").is_file():
        pytest.skip("the pages are not built: run `make web`")
    return page_dir()


def named(document: str) -> list[str]:
    return re.findall(r'(?:src|href)="(/[^"]+)"', document)


@pytest.fixture
def nobody(served: Served) -> httpx.AsyncClient:
    """A client without a token."""
    return httpx.AsyncClient(base_url=str(served.client.base_url), trust_env=False)


@pytest.mark.anyio
async def test_every_page_is_one_document_that_needs_no_login(nobody: httpx.AsyncClient) -> None:
    async with nobody as client:
        found = {(await client.get(address.replace("{", "").replace("}", ""))).text for address in ADDRESSES}
    assert len(found) == 1
    assert "<script" in found.pop()


@pytest.mark.anyio
async def test_the_document_of_a_run_says_what_it_is_to_those_who_may_see_it(
    served: Served, nobody: httpx.AsyncClient
) -> None:
    run = (await served.claimed_run("Repair <script>the sums</script>\u202e.")).run
    secret = (await served.client.post("/v1/logins")).json()["secret"]
    async with nobody as client:
        plain = await client.get(f"/runs/{run}")
        assert "Repair" not in plain.text and plain.text == (await client.get("/")).text
        assert plain.headers["cache-control"] == "no-cache"
        assert (await client.post("/v1/login", json={"secret": secret})).status_code == 200
        told = await client.get(f"/runs/{run}")
        assert "<h1>Repair &lt;script&gt;the sums&lt;/script&gt;" in told.text and "\u202e" not in told.text
        assert (told.headers["cache-control"], "running" in told.text) == ("no-store", True)
        assert (await client.get("/runs/r-000000000000")).text == plain.text
        people = people_in(served.app.settings.data_dir)
        made = await served.client.post("/v1/tokens", json={"name": "vera", "role": "viewer"})
        people.set_project("closed", ("/nowhere",))
        offered = await served.client.post(
            "/v1/logins", headers={"Authorization": f"Bearer {made.json()['token']}"}
        )
        await client.post("/v1/login", json={"secret": offered.json()["secret"]})
        assert (await client.get(f"/runs/{run}")).text == plain.text, "a project that she is not in"


@pytest.mark.anyio
async def test_nothing_inline_and_nothing_from_elsewhere_may_run(nobody: httpx.AsyncClient) -> None:
    async with nobody as client:
        answer = await client.get("/")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\bstyle=", answer.text) == []
        assert all(name.startswith("/assets/") for name in named(answer.text))
        assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.anyio
async def test_assets_are_named_by_their_content_and_kept_for_a_year(nobody: httpx.AsyncClient) -> None:
    async with nobody as client:
        for name in named((await client.get("/")).text):
            answer = await client.get(name)
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert re.search(r"-[A-Za-z0-9_-]{8}\.(js|css|svg)$", name)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "name", ["none.js", "..%2findex.html", "%2e%2e", ".sum", "index.html", "a%00.js", "x" * 300]
)
async def test_no_other_file_is_served(nobody: httpx.AsyncClient, name: str) -> None:
    async with nobody as client:
        answer = await client.get(f"/assets/{name}")
    assert answer.status_code in (400, 401, 404)
    assert "<script" not in answer.text


@pytest.mark.anyio
async def test_the_rest_of_the_server_keeps_asking_for_a_login(nobody: httpx.AsyncClient) -> None:
    async with nobody as client:
        assert (await client.get("/v1/runs")).status_code == 401
        assert (await client.get("/v1/runs")).headers["cache-control"] == "no-store"
        assert (await client.get("/", headers={"Host": "elsewhere.example"})).status_code == 421


def test_the_first_load_is_small(built: Path) -> None:
    document = (built / "index.html").read_text()
    files = [built / name.removeprefix("/") for name in named(document)]
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in files}
    assert sum(sizes.values()) <= FIRST_LOAD_BYTES, sizes


def test_a_wheel_brings_the_pages_and_is_not_built_without_them(built: Path, tmp_path: Path) -> None:
    tree, files = tmp_path / "tree", ["pyproject.toml", "README.md", "LICENSE", "scripts", "guest", "src"]
    for name in files:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        tree.mkdir(exist_ok=True)
        copy(ROOT / name, tree / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    refused = subprocess.run(build, cwd=tree, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "The pages are not built: run `make web`" in refused.stderr
    shutil.copytree(built, tree / "web/dist")
    subprocess.run(build, cwd=tree, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        document = packed.read("cloister/_web/index.html").decode()
        assert {f"cloister/_web{name}" for name in named(document)} <= set(packed.namelist())


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (ROOT / "web/package-lock.json").read_text()


def test_the_types_of_the_pages_are_those_of_the_server() -> None:
    written = (ROOT / "web/src/api/schema.ts").read_text()
    printed = subprocess.run(
        [ROOT / "scripts/web-types"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert printed == written
