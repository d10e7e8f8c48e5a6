"""Conformance suites, one per seam."""
