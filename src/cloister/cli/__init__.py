"""THE COMMAND: one file per command."""

import sys


def main() -> None:
    """The `cloister` command; ends the process with one of the documented exit codes."""
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
