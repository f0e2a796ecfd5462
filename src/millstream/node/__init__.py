"""A node: settings, the engine with all it owns, the supervisor, and the embedded forms."""
