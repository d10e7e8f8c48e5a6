"""Compilers, linters and type checkers: one file per language, SARIF, problem matchers, and `file:line: message`."""
