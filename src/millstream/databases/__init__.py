"""Databases as their users see them: over all nodes that have partitions of them."""
