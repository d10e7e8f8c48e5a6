"""Output of test runners: one file per language or format."""
