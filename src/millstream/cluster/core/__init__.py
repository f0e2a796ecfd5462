"""Decisions over several nodes, without any of them."""
