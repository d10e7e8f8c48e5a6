"""The native harness: our own loop around a model."""
