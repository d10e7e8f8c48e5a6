"""THE COMMAND: one file per command."""
