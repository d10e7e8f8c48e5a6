"""The audit: a hash chain over everything that people and runs did."""
