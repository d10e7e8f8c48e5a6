"""Talks to language models: `remote/` servers, `local/` files, and scripts. `api.py` is the interface."""
