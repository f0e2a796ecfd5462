"""The data engine: partitions, hash table, mutation queue, flusher, and the kv request loop."""
