"""Indexes kept fresh: sources read, maps run, rows sorted, commits made."""
