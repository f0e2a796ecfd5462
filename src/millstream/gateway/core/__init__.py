"""Decisions of the HTTP server: error bodies, cookies, origins, its interface to the node."""
