"""Interfaces of the node that the HTTP pages use."""
