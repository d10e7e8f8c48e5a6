"""How commands reach a run: over HTTP, in this process, or in the log."""
