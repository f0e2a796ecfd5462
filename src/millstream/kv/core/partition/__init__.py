"""One copy of a partition in memory: hash table, seqnos, changes, expiry, eviction, state."""
