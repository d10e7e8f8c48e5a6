"""The log of several machines: NATS JetStream orders their transactions, and each machine keeps a copy in SQLite."""
