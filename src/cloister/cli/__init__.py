"""THE COMMAND: one file per command."""

import atexit
import gc
import os
import sys


def main() -> None:
    """The `cloister` command; ends the process with one of the documented exit codes."""
    gc.set_threshold(50_000)  # starting makes many objects and hardly any garbage
    codes: list[int] = []
    atexit.register(_leave, codes)  # as the first one: exit functions run in reverse order
    try:
        from cloister.cli.quick import answer

        if (told := answer(sys.argv[1:])) is not None:
            print(told, end="")
            return
        from cloister.cli.entry import enter

        enter()
    except KeyboardInterrupt:  # also while modules are still being loaded
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            codes.append(end.code or 0)
        raise


def _leave(codes: list[int]) -> None:
    """End the process without taking its modules apart, which is a sixth of the time of a quick command.

    Threads have ended, and the exit functions of everything that `main` has loaded have run.
    """
    if not codes:
        return  # an error that Python itself prints
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(codes[0])
