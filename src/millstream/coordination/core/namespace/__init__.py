"""The tree that a group replicates: elements, and what clients do with them."""
