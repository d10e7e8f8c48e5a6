"""A run in words: events as lines of text. Pure; used by the terminal and the API."""
