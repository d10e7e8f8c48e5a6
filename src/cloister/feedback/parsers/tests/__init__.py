"""Test runners: one file per language, and JUnit, TAP and CTRF, which many runners write."""
