"""Decisions about several nodes, without input or output."""
