"""Databases that replicate with each other while everything goes wrong, in one thread."""
