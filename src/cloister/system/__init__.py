"""Processes and locks of the host."""
