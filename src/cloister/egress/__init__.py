"""The proxy: the only way out of a sandbox."""
