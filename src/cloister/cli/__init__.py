"""THE COMMAND: one file per command."""


def main() -> None:
    """The `cloister` command; ends the process with one of the documented exit codes."""
    from cloister.cli.entry import enter

    enter()
