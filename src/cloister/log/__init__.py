"""The durable log: appended, followed, replayed."""
