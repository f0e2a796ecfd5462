"""Clients of a node in plain Python: documents, leases, ranges of the change stream."""
