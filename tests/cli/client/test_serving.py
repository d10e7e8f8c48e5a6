"""The server's life as the command sees it, and runs through it and without it. No sandbox is opened."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from cloister.cli.client.discover import living, lock_held
from cloister.core.ids import new_owner_id
from cloister.core.requests import NewRun
from cloister.log.sqlite.backbone import open_backbone
from cloister.sandbox.liveness import Owners
from cloister.testing.samples import SampleRepo

Cloister = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def broken_script(tmp_path: Path) -> str:
    """A model that cannot be opened, beside a repository: the run fails before it needs a sandbox."""
    path = tmp_path / "broken.toml"
    path.write_text("this is not TOML")
    SampleRepo(tmp_path).commit()
    return f"script:{path}"


def events(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [json.loads(line)["body"]["type"] for line in done.stdout.splitlines()]


def test_a_background_server_is_started_seen_and_stopped(cloister: Cloister, data_dir: Path) -> None:
    started = cloister("serve", "--background", "--port", "0")
    assert started.returncode == 0, started.stderr
    place = living(data_dir)
    assert place is not None
    assert started.stdout == (
        f"The server is ready: {place.url} (process {place.pid}, log {data_dir}/server.log)\n"
    )
    try:
        again = cloister("serve", "--background")
        assert (again.returncode, again.stdout) == (
            0,
            f"A server is already running: {place.url} (process {place.pid})\n",
        )
        front = cloister("serve", "--port", "0")
        assert (front.returncode, front.stdout) == (3, "")
        assert front.stderr.startswith(f"cloister: A server already runs on {data_dir}")
        status = cloister("serve", "--status")
        assert status.returncode == 0
        assert status.stdout.startswith(f"running: {place.url}, process {place.pid}, port {place.port}, up ")
        assert json.loads(cloister("serve", "--status", "--json").stdout)["pid"] == place.pid
        # It has a session of its own: what happens to our terminal is not its business.
        assert os.getsid(place.pid) == place.pid
    finally:
        stopped = cloister("serve", "--stop")
    assert stopped.returncode == 0
    assert stopped.stdout.startswith(f"Stopped the server (process {place.pid}).")
    assert not lock_held(data_dir)
    gone = cloister("serve", "--status")
    assert (gone.returncode, gone.stdout.split(".")[0]) == (1, f"not running on {data_dir}")
    assert cloister("serve", "--stop").stdout == "No server was running.\n"
    assert cloister("sandbox", "ls").stdout == "No sandboxes. Open one: cloister sandbox create\n"


def test_a_server_that_cannot_start_says_why(
    cloister: Cloister, data_dir: Path, server: None, tmp_path: Path
) -> None:
    place = living(data_dir)
    assert place is not None
    other = str(tmp_path / "other")
    done = cloister("--data-dir", other, "serve", "--background", "--port", str(place.port))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[-1] == (
        f"cloister: The server did not start: Port {place.port} is taken: "
        "stop what listens there or choose another with `port` in the settings, or `cloister serve --port`."
    )


def test_without_a_server_the_command_drives_the_run_itself(
    cloister: Cloister, data_dir: Path, broken_script: str
) -> None:
    done = cloister("run", "fix it", "--repo", ".", "--model", broken_script)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.splitlines()[0].endswith("  fix it")
    assert "✗ failed  " in done.stdout
    assert "\x1b" not in done.stdout
    again = cloister("run", "fix it", "--repo", ".", "--model", broken_script, "--json")
    assert (again.returncode, events(again)) == (2, ["RunAdmitted", "RunClaimed", "RunFinished"])
    assert not lock_held(data_dir)


def test_with_a_server_the_run_is_the_servers_and_reads_the_same(
    cloister: Cloister, server: None, broken_script: str
) -> None:
    done = cloister("run", "fix it", "--repo", ".", "--model", broken_script, "--json")
    assert (done.returncode, events(done)) == (2, ["RunAdmitted", "RunClaimed", "RunFinished"])
    shown = cloister("run", "fix it", "--repo", ".", "--model", broken_script)
    assert (shown.returncode, shown.stderr) == (2, "")
    assert cloister("watch", "last").stdout == shown.stdout
    resumed = cloister("watch", "last", "--after", "2", "--json")
    assert (resumed.returncode, events(resumed)) == (2, ["RunFinished"])


def test_a_detached_run_starts_a_server_and_prints_its_id(
    cloister: Cloister, data_dir: Path, broken_script: str
) -> None:
    data_dir.mkdir()
    (data_dir / "config.toml").write_text("port = 0\n")
    done = cloister("run", "fix it", "--repo", ".", "--model", broken_script, "--detach")
    try:
        assert done.returncode == 0, done.stderr
        run = done.stdout.strip()
        assert done.stderr.splitlines() == [
            "Starting a server in the background …",
            f"Watch it: cloister watch {run}",
        ]
        assert cloister("watch", run).returncode == 2
    finally:
        assert cloister("serve", "--stop").returncode == 0


def test_a_refusal_of_the_server_is_the_commands_refusal(cloister: Cloister, server: None) -> None:
    done = cloister("run", "x", "--repo", ".", "--model", "nobody:knows")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cloister: There is no model 'nobody:knows'")
    missing = cloister("sandbox", "rm", "s-nope")
    assert (missing.returncode, missing.stderr) == (
        2,
        "cloister: There is no sandbox 's-nope': `cloister sandbox ls` lists them.\n",
    )


async def _interrupted_watch(run: str, env: dict[str, str]) -> tuple[int | None, bytes]:
    """Ctrl-C once `cloister watch` has shown the run: its exit code and what it prints on stderr."""
    command = [sys.executable, "-m", "cloister", "watch", run]
    async with await anyio.open_process(command, env=env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        with anyio.fail_after(30):
            assert b"slow" in await process.stdout.receive()
            process.send_signal(signal.SIGINT)
            said = b"".join([part async for part in process.stderr])
            await process.wait()
    return process.returncode, said


@pytest.mark.anyio
async def test_ctrl_c_lets_go_of_a_watched_run(plain_env: dict[str, str], cloister: Cloister) -> None:
    path = Path(plain_env["CLOISTER_DATA_DIR"])
    owners, owner = Owners(path / "owners"), new_owner_id()
    with owners.hold(owner):
        async with open_backbone(path / "cloister.db", owner_lives=owners.lives) as backbone:
            run, _ = await backbone.admit(NewRun("slow", "/repo"), "ann")
            # Claimed before the server starts: this process holds the run, so nothing happens in it.
            assert await backbone.claim(owner, run) is not None
            started = await anyio.to_thread.run_sync(
                partial(cloister, "serve", "--background", "--port", "0")
            )
            try:
                assert started.returncode == 0, started.stderr
                returncode, said = await _interrupted_watch(run, plain_env)
            finally:
                stopped = await anyio.to_thread.run_sync(partial(cloister, "serve", "--stop"))
    assert stopped.returncode == 0, stopped.stderr
    assert returncode == 130
    first, second = said.decode().splitlines()
    assert first == f"The run continues. Watch it: cloister watch {run}"
    assert second.strip() == f"Stop it: cloister stop {run}"
