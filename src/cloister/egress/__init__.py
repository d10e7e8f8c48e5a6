"""THE DOOR: the only way out of a sandbox."""
