"""What a database is over all nodes that have partitions of it."""
