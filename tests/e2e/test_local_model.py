"""Runs that are driven by a model on this machine."""

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from cloister.core.errors import OutsideError
from cloister.model.fetch import Sources, fetch
from cloister.model.local_files import Shelf
from cloister.testing.model_tiny import write_tiny_model

pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")

CACHE = Path.home() / ".cache" / "cloister-tests" / "models"
REAL = "qwen2.5-coder-0.5b"
EXAMPLES = Path(__file__).parents[2] / "examples"


def repository(cloister: Any, files: dict[str, str]) -> Path:
    at = cloister.cwd / "repository"
    at.mkdir()
    for name, text in files.items():
        (at / name).write_text(text)
    for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
        cloister.git(at, *args)
    return at


def test_a_run_is_driven_by_llama_cpp_and_leaves_no_process_behind(cloister: Any) -> None:
    tiny = write_tiny_model(cloister.cwd / "tiny.gguf")
    repo = repository(cloister, {"a.py": "print('hi')\n"})
    cloister(
        "run",
        "Say that it works.",
        "--repo",
        str(repo),
        "--check",
        "python3 a.py",
        "--model",
        f"local:{tiny}",
    )
    [replied] = [e["body"] for e in cloister.events() if e["body"]["type"] == "ModelReplied"]
    assert replied["model"] == f"local:{tiny}"
    assert replied["calls"][0]["name"] == "finish"
    assert replied["cost"] == 0.0
    assert cloister.events()[-1]["body"]["outcome"] == "green"
    alive = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"llama_process" in read(path)]
    assert not [path for path in alive if str(cloister.data_dir).encode() in open_files(path.parent)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def open_files(process: Path) -> bytes:
    try:
        return b"\n".join(os.fsencode(fd.readlink()) for fd in (process / "fd").iterdir())
    except OSError:
        return b""


def real_file() -> Path:
    """The file of the small real model; only where it may be fetched or was."""
    place = CACHE / f"{REAL}.gguf"
    if not place.is_file() and os.environ.get("CLOISTER_TEST_FETCH") != "1":
        pytest.skip(f"{REAL} is not in {CACHE}: set CLOISTER_TEST_FETCH=1 to fetch it (0.5 GB)")

    async def main() -> Path:
        return await fetch(Shelf(CACHE), REAL, Sources("https://huggingface.co"), lambda done, total: None)

    try:
        return anyio.run(main)
    except OutsideError as error:
        pytest.skip(f"{REAL} cannot be fetched: {error.message}")


@pytest.mark.real_model
def test_a_real_model_acts_and_the_evidence_decides(cloister: Any) -> None:
    cloister.data_dir.mkdir(exist_ok=True)
    config = cloister.data_dir / "config.toml"
    config.write_text(f'[local_models]\n"{REAL}" = "{real_file()}"\n')
    sources = {path.name: path.read_text() for path in (EXAMPLES / "till").glob("*.py")}
    repo = repository(cloister, sources)
    prompt = "A test fails. Read till.py, repair it, and finish when the tests pass."
    bounds = ("--steps", "4", "--seconds", "50")
    check = ("--check", "python3 -m pytest -q")
    cloister("run", prompt, "--repo", str(repo), *check, "--model", f"local:{REAL}", *bounds, code=None)
    events = cloister.events()
    replies = [e["body"] for e in events if e["body"]["type"] == "ModelReplied"]
    assert replies, events
    assert {call["name"] for body in replies for call in body["calls"]} <= {
        "bash",
        "read",
        "write",
        "edit",
        "search",
        "finish",
    }
    outcome = events[-1]["body"]["outcome"]
    proven = any(e["body"]["type"] == "ProofTaken" and e["body"]["comparison"]["green"] for e in events)
    assert (outcome == "green") == proven, "whatever it says, only the evidence makes a run green"
