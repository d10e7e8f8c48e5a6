"""DURABLE RUNS: log, queue, supervisor, live hub."""
