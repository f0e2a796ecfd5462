"""The namespaces as a file system, spoken in 9P2000.L and 9P2000 (`connection`)."""
