"""Protocols for the doors to the operating system, so that cores run with false ones."""
