"""Parsers of tool output: `tests/` for test runners, `lint/` for compilers, linters and type checkers, `crash.py` for stack traces.

Each folder has one file per language, and one per format that many tools write (JUnit, TAP, SARIF). A parser is one
function `CheckOutput -> Found | None`; `diagnose.py` lists all of them. `plain.py` and `json.py` are their helpers.
"""
