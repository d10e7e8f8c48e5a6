"""Parses the output of checks into diagnoses and compares them with the base. Pure. New parser: see `parsers/`."""
