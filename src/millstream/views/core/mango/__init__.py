"""CouchDB's declarative queries: selectors, JSON indexes, and what is asked of `_find`."""
