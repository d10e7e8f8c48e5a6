"""Cloister: a self-hosted background coding agent."""

__version__ = "0.1.0"
