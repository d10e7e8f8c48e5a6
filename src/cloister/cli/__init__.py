"""THE COMMAND: one file per command."""

import sys


def main() -> None:
    """The `cloister` command; ends the process with one of the documented exit codes."""
    try:
        from cloister.cli.entry import enter

        enter()
    except KeyboardInterrupt:  # also while modules are still being loaded
        sys.exit(130)
