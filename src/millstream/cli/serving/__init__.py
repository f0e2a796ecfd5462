"""Commands that run a node or a cluster, and look after it."""
