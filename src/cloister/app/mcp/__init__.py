"""Cloister as an MCP server: what editors and agents can do here, over the verbs of their caller."""
