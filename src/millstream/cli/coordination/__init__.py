"""Commands of coordination, and its shell."""
