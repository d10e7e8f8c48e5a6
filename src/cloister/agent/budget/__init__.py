"""Paying for calls and keeping time."""
