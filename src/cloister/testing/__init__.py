"""Fakes at our own seams, which pass the conformance suites in `tests/whole/conformance/suites`."""
