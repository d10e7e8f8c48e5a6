"""Checks and proof: what shows that a change works."""
