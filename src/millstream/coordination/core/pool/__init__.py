"""Nodes that coordinate together: members, the groups they host, administration."""
