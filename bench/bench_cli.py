"""How long the command takes to answer, against Python starting and doing nothing."""

import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 15


def timed(argv: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        cloister = [sys.executable, "-m", "cloister", "--data-dir", directory]
        commands = {"cloister --help": [*cloister, "--help"], "cloister ps": [*cloister, "ps"]}
        bare = [timed([sys.executable, "-c", "pass"]) for _ in range(ROUNDS)]
        nothing = statistics.median(bare) * 1000
        for name, argv in commands.items():
            took = statistics.median(timed(argv) for _ in range(ROUNDS)) * 1000
            print(
                f"{name:18s} {took:6.0f} ms   python alone {nothing:5.0f} ms   ratio {took / nothing:4.1f}x   "
                "(goal < 200 ms)"
            )


if __name__ == "__main__":
    main()
