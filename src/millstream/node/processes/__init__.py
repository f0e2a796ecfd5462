"""The processes of a node: supervisor, engine, index process, coordination process."""
