"""Machines and NATS servers are killed and stopped under load: every run ends as it would have. `bench/cluster.py` does more of it."""

from pathlib import Path

from tests.log.jetstream.servers import three_servers
from tests.whole.cluster.fleet import asleep, fleet

RUNS = 6


def test_every_run_ends_once_and_whole_although_machines_and_servers_are_killed(
    warm_dir: Path, tmp_path: Path
) -> None:
    with (
        three_servers(tmp_path / "nats") as servers,
        fleet(tmp_path, warm_dir, servers, workers=3) as machines,
    ):
        runs = machines.submit(RUNS)
        machines.until(machines.started(3))
        first, second, third = machines.workers
        first.kill_server()
        servers[0].kill()
        with asleep(second):
            machines.until(lambda: any(row["state"] == "finished" for row in machines.rows()))
        servers[0].start()
        third_pid = third.server_pid()
        first("serve", "--background")
        machines.until(machines.finished)
        assert third.server_pid() == third_pid
        machines.check(runs)
        machines.stop()
        assert machines.left_over() == []
