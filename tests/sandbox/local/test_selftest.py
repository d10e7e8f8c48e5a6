"""What is remembered of the trials of runtimes."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anyio

from cloister.sandbox.local.selftest import Bench, Proof, RuntimeReport, remembered, report

AT_ONCE = 16


def test_trials_that_end_in_the_same_moment_are_all_remembered(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    runtime = tmp_path / "bin" / "crun"
    runtime.symlink_to("/bin/true")
    benches = [
        Bench("container", f"store-{number}", str(runtime.parent), tmp_path / "data" / "runtimes.json")
        for number in range(AT_ONCE)
    ]

    async def trial(_: Path) -> Proof:
        return Proof()

    def tried(bench: Bench) -> RuntimeReport:
        return anyio.run(partial(report, "crun", bench, trial))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(tried, benches))

    assert all(one.works for one in made)
    assert [remembered("crun", bench) for bench in benches] == made
