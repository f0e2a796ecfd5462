"""Pages for other nodes of the cluster."""
