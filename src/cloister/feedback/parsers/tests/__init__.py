"""Output of test runners."""
