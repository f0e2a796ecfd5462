"""Durable state of documents: the segment log, its by-id map, recovery."""
