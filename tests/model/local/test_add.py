"""`cloister model add`: any GGUF file, copied or downloaded, verified, under a name of its own."""

import fcntl
import hashlib
import importlib.util
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.client import forked
from tests.model.tiny_model import write_tiny_model

from cloister.app.config import usual_model
from cloister.app.settings import read_settings
from cloister.app.verbs.local import local_verbs
from cloister.cli.client.discover import living
from cloister.core.errors import CloisterError, UserError
from cloister.log.sqlite.reader import AuditReader

Done = subprocess.CompletedProcess[str]


@dataclass
class Files:
    """An HTTP server with one file, in the ways that servers fail."""

    data: bytes
    redirect: str | None = None
    cut: int | None = None
    """Bytes after which it hangs up, once."""
    etag: str | None = '"one"'
    length: bool = True
    claims: int | None = None
    """A wrong Content-Length."""
    asked: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(headers)
        if self.redirect is not None:
            request.send_response(302)
            request.send_header("Location", self.redirect)
            request.end_headers()
            return
        start = int(headers.get("range", "bytes=0-")[6:].rstrip("-"))
        if headers.get("if-range", self.etag) != self.etag:
            start = 0
        if start >= len(self.data):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.data)}")
            request.end_headers()
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.data) - 1}/{len(self.data)}")
        if self.etag:
            request.send_header("ETag", self.etag)
        if self.length:
            request.send_header("Content-Length", str(self.claims or len(self.data) - start))
        request.end_headers()
        cut, self.cut = self.cut, None
        request.wfile.write(self.data[start : None if cut is None else start + cut])


@contextmanager
def serving(data: bytes, **more: Any) -> Generator[Files]:
    files = Files(data, **more)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files.url = f"http://127.0.0.1:{server.server_port}/some/Tiny_Model.gguf"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Home:
    """A data directory, and the command on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.models = self.data / "models"
        self.tiny = write_tiny_model(root / "tiny.gguf")
        self.sum = hashlib.sha256(self.tiny.read_bytes()).hexdigest()

    def __call__(self, *args: str, code: int = 0) -> Done:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CLOISTER_")}
        env = kept | {"PYTHONWARNINGS": "error"}
        done = forked.run(("--data-dir", str(self.data), *args), cwd=self.root, env=env)
        assert done.returncode == code, (args, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def refused(self, *args: str, code: int = 2) -> str:
        """The sentence of a refusal."""
        *progress, said = self("model", "add", *args, code=code).stderr.splitlines()
        assert said.startswith("cloister: ")
        assert not any("cloister" in line for line in progress)
        return said

    def error(self, source: str, name: str | None = None, sha256: str | None = None) -> CloisterError:
        """The refusal of the verb itself."""
        verbs = local_verbs(read_settings({}, data_dir=self.data))
        with pytest.raises(CloisterError) as caught:
            anyio.run(lambda: verbs.models.add(source, name, sha256))
        return caught.value

    def kept(self) -> list[str]:
        return sorted(path.name for path in self.models.iterdir()) if self.models.is_dir() else []


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_added_file_is_copied_listed_usable_by_name_and_removed(home: Home) -> None:
    said = home("model", "add", "tiny.gguf", "--name", "mine", "--sha256", home.sum.upper()).stdout
    assert home.sum in said and "local:mine" in said
    assert (home.models / "mine.gguf").read_bytes() == home.tiny.read_bytes()
    listed = [json.loads(line) for line in home("model", "list", "--json").stdout.splitlines()]
    [mine] = [model for model in listed if model["name"] == "mine"]
    assert (mine["title"], mine["here"], mine["sha256"]) == ("tiny", True, home.sum)
    assert mine["bytes"] == home.tiny.stat().st_size
    assert "mine" in home("model", "list").stdout
    assert home("model", "rm", "mine").stdout.count("mine") >= 1
    assert home.kept() == []
    assert home.tiny.is_file(), "the source stays"
    assert "There is no local model 'mine'" in home("model", "rm", "mine", code=2).stderr


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs the extra `local`")
def test_added_model_is_served_by_its_name(home: Home) -> None:
    home("model", "add", "tiny.gguf")
    command = [sys.executable, "-m", "cloister", "--data-dir", str(home.data), "model", "serve", "tiny"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.terminate()
    assert first.startswith("CLOISTER_MODEL_URL=http://127.0.0.1:")


@pytest.mark.parametrize(
    ("name", "known"), [("tiny", True), ("tinier", False), ("../tiny", False), ("", True)]
)
def test_run_accepts_the_name_of_an_added_model_and_no_other(home: Home, name: str, known: bool) -> None:
    home("model", "add", "tiny.gguf")
    settings = read_settings({}, data_dir=home.data)
    if known:
        assert usual_model(settings, f"local:{name}") == f"local:{name or 'qwen2.5-coder-1.5b'}"
    else:
        with pytest.raises(UserError, match="There is no local model"):
            usual_model(settings, f"local:{name}")


def test_without_a_sum_the_sum_is_printed(home: Home) -> None:
    assert home.sum in home("model", "add", str(home.tiny)).stdout
    made = json.loads(home("model", "add", "tiny.gguf", "--name", "again", "--json").stdout)
    assert (made["name"], made["sha256"]) == ("again", home.sum)


def test_download_is_verified_and_named_after_its_address(home: Home) -> None:
    with serving(home.tiny.read_bytes()) as files:
        made = json.loads(home("model", "add", files.url + "?token=s3cret", "--json").stdout)
    assert made["name"] == "tiny_model"
    assert (home.models / "tiny_model.gguf").read_bytes() == home.tiny.read_bytes()
    assert home.kept() == ["tiny_model.gguf", "tiny_model.json"]
    assert "s3cret" not in (home.models / "tiny_model.json").read_text()
    with AuditReader(home.data / "cloister.db") as audit:
        [entry] = [entry for entry in audit.page(0, 100) if entry.kind == "ModelAdded"]
    assert home.sum in str(entry.detail) and "s3cret" not in str(entry.detail)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("etag", ['"one"', None])
def test_broken_download_resumes_and_two_versions_are_never_mixed(
    home: Home, pinned: bool, etag: str | None
) -> None:
    data = home.tiny.read_bytes()
    more = ("--sha256", home.sum) if pinned else ()
    with serving(b"GGUF" + bytes(len(data) - 4), cut=4_000, etag=etag) as files:
        said = home.refused(files.url, *more, code=4)
        assert "4,000 bytes are kept" in said
        files.data, files.etag, files.cut = data, etag and '"two"', 9_000
        home.refused(files.url, *more, code=4)
        home("model", "add", files.url, *more, code=2 if pinned and not etag else 0)
    ranges = [asked.get("range") for asked in files.asked]
    assert ranges[0] is None
    if pinned or etag:
        assert ranges[1] == "bytes=4000-"
    else:
        assert ranges == [None, None, None], "without a sum or a version it starts again"
    if not (pinned and not etag):
        assert (home.models / "tiny_model.gguf").read_bytes() == data


def test_download_with_another_sum_is_kept_for_the_right_one(home: Home) -> None:
    with serving(home.tiny.read_bytes()) as files:
        said = home.refused(files.url, "--sha256", "0" * 64)
        assert home.sum in said and "kept" in said
        assert "tiny_model.gguf" not in home.kept()
        home("model", "add", files.url, "--sha256", home.sum)
    assert [asked.get("range") for asked in files.asked][1] == f"bytes={home.tiny.stat().st_size}-"
    assert home.kept() == ["tiny_model.gguf", "tiny_model.json"]


def test_begun_download_can_be_removed(home: Home) -> None:
    with serving(home.tiny.read_bytes(), cut=5_000) as files:
        home.refused(files.url, code=4)
    assert home.kept()
    home("model", "rm", "tiny_model")
    assert home.kept() == []


def header(*facts: bytes, tensors: int = 1, entries: int | None = None, version: int = 3) -> bytes:
    return (
        b"GGUF"
        + struct.pack("<IQQ", version, tensors, len(facts) if entries is None else entries)
        + b"".join(facts)
    )


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


SPLIT = text("split.count") + struct.pack("<IH", 2, 3)
NOT_MODELS = {
    "empty": b"",
    "page": b"<html>Sign in</html>",
    "magic alone": b"GGUF",
    "version": header(version=1, tensors=0),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 1, 0),
    "no weights": header(tensors=0),
    "part of several": header(SPLIT, tensors=0),
    "endless text": header(struct.pack("<Q", 2**63)),
    "endless list": header(text("a") + struct.pack("<IIQ", 9, 0, 2**60)),
    "nested lists": header(text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100),
    "unknown kind": header(text("a") + struct.pack("<I", 77)),
    "countless entries": header(entries=2**60),
    "tensor beyond the end": header() + text("t") + struct.pack("<IQIQ", 1, 64, 0, 0),
}


@pytest.mark.parametrize("data", NOT_MODELS.values(), ids=NOT_MODELS)
def test_file_that_is_not_a_whole_model_is_refused_here_and_from_an_address(home: Home, data: bytes) -> None:
    bad = home.root / "bad.gguf"
    bad.write_bytes(data)
    error = home.error(str(bad))
    assert error.code == "bad_model_file" and "is not a model: it" in error.message
    assert home.kept() == []
    with serving(data) as files:
        assert home.error(files.url).code in ("bad_model_file", "download_failed")
    assert "tiny_model.gguf" not in home.kept()


@pytest.mark.parametrize("left", [10, 1_000, -1])
def test_cut_file_is_refused_even_if_the_server_does_not_say_how_long_it_is(home: Home, left: int) -> None:
    cut = home.tiny.read_bytes()[:left]
    (home.root / "cut.gguf").write_bytes(cut)
    assert "cut off" in home.refused("cut.gguf")
    with serving(cut, length=False) as files:
        assert "cut off" in home.error(files.url).message


def test_page_in_place_of_a_model_is_not_downloaded_to_its_end(home: Home) -> None:
    with serving(b"<html>" + bytes(50_000_000)) as files:
        assert "not a GGUF file" in home.refused(files.url, code=4)
    assert home.kept() == []


BAD_SOURCES = [
    "http://models.example/a.gguf",
    "ftp://models.example/a.gguf",
    "file:///etc/passwd",
    "https://ann:s3cret@models.example/a.gguf",
    "https:///a.gguf",
    "https://models.example:99999/a.gguf",
    "https://[::1/a.gguf",
    "relative.gguf",
    "/missing.gguf",
    "/tmp",  # a directory
    "/dev/zero",
]


@pytest.mark.parametrize("source", BAD_SOURCES)
def test_source_that_cannot_be_used_is_refused_with_one_sentence(home: Home, source: str) -> None:
    error = home.error(source, name="x")
    assert error.code == "bad_source"
    assert "s3cret" not in error.message
    assert home.kept() == []


@pytest.mark.parametrize("to", ["http://models.example/a.gguf", "file:///etc/passwd", "ftp://a.example/a"])
def test_redirect_to_an_unprotected_address_is_refused_before_it_is_contacted(home: Home, to: str) -> None:
    with serving(b"", redirect=to) as files:
        error = home.error(files.url)
    assert "redirects to" in error.message and "not an https:// address" in error.message
    assert home.kept() == []


def test_redirect_on_loopback_is_followed_and_a_circle_of_them_ends(home: Home) -> None:
    with serving(home.tiny.read_bytes()) as files, serving(b"", redirect=files.url) as first:
        home("model", "add", first.url, "--name", "there")
    with serving(b"", redirect="/again") as files:
        assert "redirects more than" in home.refused(files.url, "--name", "circle", code=4)


@pytest.mark.parametrize(
    ("name", "why"), [("Ä", "cannot name"), ("../a", "cannot name"), ("a" * 65, "cannot name")]
)
def test_bad_name_is_refused(home: Home, name: str, why: str) -> None:
    assert why in home.error(str(home.tiny), name=name).message


def test_taken_name_is_refused_and_the_first_file_stays(home: Home) -> None:
    home("model", "add", "tiny.gguf", "--name", "mine")
    (home.root / "other.gguf").write_bytes(home.tiny.read_bytes() + bytes(32))
    assert "There is a local model mine already" in home.refused("other.gguf", "--name", "mine")
    assert (home.models / "mine.gguf").read_bytes() == home.tiny.read_bytes()
    said = home.refused("tiny.gguf", "--name", "qwen2.5-coder-0.5b")
    assert "SHA-256" in said, "a name of the catalog is for the official file alone"
    assert home.sum in said
    home.refused("tiny.gguf", "--name", "qwen2.5-coder-0.5b", "--sha256", home.sum)
    assert home.kept() == ["mine.gguf", "mine.json"]


@pytest.mark.parametrize("given", ["", "abc", "g" * 64, "0" * 65])
def test_sum_that_is_none_is_refused_before_anything_is_read(home: Home, given: str) -> None:
    assert "64 hexadecimal digits" in home.error(str(home.tiny), sha256=given).message


def test_file_with_another_sum_is_not_kept(home: Home) -> None:
    assert home.sum in home.refused("tiny.gguf", "--sha256", "0" * 64)
    assert home.kept() == []
    assert home.tiny.is_file()


def test_file_that_does_not_fit_is_refused_before_the_download(home: Home) -> None:
    with serving(b"GGUF", claims=200 * 2**30) as files:
        said = home.refused(files.url, code=3)
        assert "needs 214.7 GB more" in said
        files.claims = 2**40
        assert "1024 GiB" in home.refused(files.url)


def test_two_commands_at_once_do_not_write_over_each_other(home: Home) -> None:
    home.models.mkdir(parents=True)
    holder = os.open(home.models, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert "Another process is fetching" in home.refused("tiny.gguf")
    finally:
        os.close(holder)


def test_server_adds_a_file_of_its_machine_with_the_same_words(home: Home) -> None:
    home.data.mkdir()
    (home.data / "config.toml").write_text("port = 0\n")
    home("serve", "--background")
    try:
        found = living(home.data)
        assert found is not None
        assert home.sum in home("model", "add", "tiny.gguf", "--name", "mine").stdout
        assert "already" in home.refused("tiny.gguf", "--name", "mine")
        assert "cut off" in home.refused(str(_cut(home)))
        with serving(home.tiny.read_bytes()) as files:
            assert json.loads(home("model", "add", files.url, "--json").stdout)["sha256"] == home.sum
        assert home("model", "list").stdout.count("yes") == 2
    finally:
        home("serve", "--stop")


def _cut(home: Home) -> Path:
    path = home.root / "cut.gguf"
    path.write_bytes(home.tiny.read_bytes()[:-1])
    return path
