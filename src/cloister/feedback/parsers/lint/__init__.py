"""Output of compilers, linters and type checkers."""
