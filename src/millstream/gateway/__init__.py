"""The HTTP front door: the node's pages, log-in, administration, metrics."""
