"""Detects changes that weaken the checks: easier or missing tests, silenced linters, code that deceives tests."""
