"""Pages of the node: health, users, sessions, what SDKs ask."""
