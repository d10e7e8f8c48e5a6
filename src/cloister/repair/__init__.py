"""Repair by search: suspicious lines, rules that change them, and the tests as judge. No model."""
