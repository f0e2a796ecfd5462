"""The data directory of a node: its small files, inventory, check and repair."""
