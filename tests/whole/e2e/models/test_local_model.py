"""Runs that are driven by a model on this machine."""

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.model.tiny_model import write_tiny_model

from cloister.core.errors import OutsideError
from cloister.model.local.fetch import fetch
from cloister.model.local.files import Shelf

pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")

CACHE = Path.home() / ".cache" / "cloister-tests" / "models"
USUAL, SMALL = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
EXAMPLES = Path(__file__).parents[4] / "examples"


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
        "--accept",
        "unbroken",
    )
    looked, *_, replied = [e["body"] for e in cloister.events() if e["body"]["type"] == "ModelReplied"]
    assert looked["calls"][0]["name"] in ("read", "bash"), "it may not change what it has not seen"
    assert replied["model"] == f"local:{tiny}"
    assert replied["calls"][0]["name"] == "finish"
    assert replied["cost"] == 0.0
    assert cloister.events()[-1]["body"]["outcome"] == "unbroken"
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


def real_file(name: str) -> Path:
    """The file of a real model, fetched once. CLOISTER_TEST_FETCH=0 fetches nothing."""
    place = CACHE / f"{name}.gguf"
    if not place.is_file() and os.environ.get("CLOISTER_TEST_FETCH") == "0":
        pytest.skip(f"{name} is not in {CACHE}, and CLOISTER_TEST_FETCH=0 says not to fetch it")

    async def main() -> Path:
        return await fetch(Shelf(CACHE), name, "https://huggingface.co", lambda done, total: None)

    try:
        return anyio.run(main)
    except OutsideError as error:
        pytest.skip(f"{name} cannot be fetched: {error.message}")


def run_the_demos_job(cloister: Any, name: str, *bounds: str) -> list[dict[str, Any]]:
    """The events of a run that a real model drove."""
    cloister.data_dir.mkdir(exist_ok=True)
    (cloister.data_dir / "config.toml").write_text(f'[local_models]\n"{name}" = "{real_file(name)}"\n')
    repo = repository(cloister, {path.name: path.read_text() for path in (EXAMPLES / "till").glob("*.py")})
    prompt = "A test fails. Read till.py, repair it, and finish when the tests pass."
    options = ("--check", "python3 -m pytest -q", "--model", f"local:{name}", *bounds)
    cloister("run", prompt, "--repo", str(repo), *options, code=None)
    return [event["body"] for event in cloister.events()]


def is_proven(bodies: list[dict[str, Any]]) -> bool:
    return any(body["type"] == "ProofTaken" and body["comparison"]["green"] for body in bodies)


@pytest.mark.real_model
def test_a_real_model_acts_and_the_evidence_decides(cloister: Any) -> None:
    bodies = run_the_demos_job(cloister, SMALL, "--steps", "4", "--seconds", "50")
    called = {call["name"] for body in bodies if body["type"] == "ModelReplied" for call in body["calls"]}
    assert called and called <= {"bash", "read", "edit", "finish"}, bodies
    assert (bodies[-1]["outcome"] == "proven") == is_proven(bodies), "whatever it says"


@pytest.mark.real_model
def test_the_model_of_the_demo_repairs_its_bug(cloister: Any) -> None:
    if not (CACHE / f"{USUAL}.gguf").is_file():
        pytest.skip(f"{USUAL} (1.1 GB) is not in {CACHE}: `cloister model fetch` brings it")
    bodies = run_the_demos_job(cloister, USUAL, "--steps", "12")
    assert bodies[-1]["outcome"] == "proven", bodies[-1]
    assert is_proven(bodies)
    [branch] = cloister.git(cloister.cwd / "repository", "branch", "--list", "cloister/*").split()
    changed = cloister.git(cloister.cwd / "repository", "diff", "--numstat", "main", branch)
    assert changed.split()[2:] == ["till.py"], "the test is as it was"
