"""A client of coordination without I/O: finding the primary, repeating, typed replies, errors."""
