"""A node: settings, the engine with all its parts, the supervisor, and the embedded forms."""
