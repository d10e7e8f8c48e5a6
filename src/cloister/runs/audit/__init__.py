"""The audit: who did what, as a chain of entries that nobody can change without being found out."""
