"""Doors of the document store to libraries that do their own input and output."""
