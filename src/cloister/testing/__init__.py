"""Fakes at our own seams and the conformance suites that every implementation passes."""
