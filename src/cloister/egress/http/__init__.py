"""HTTP through the proxy."""
