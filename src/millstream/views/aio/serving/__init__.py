"""Queries of the index process, and its talk with the engine and with other nodes."""
