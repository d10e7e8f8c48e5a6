"""Tool output to findings: one file per format."""
