"""One machine alone, or among the machines of a cluster: where runs are kept, and in whose name they are driven."""
