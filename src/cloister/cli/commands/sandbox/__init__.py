"""`cloister sandbox`."""
