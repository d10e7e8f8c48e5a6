"""Experiments that try to refute a green check."""
