"""Experiments on the evidence: changes of test code that an honest test suite must report."""
