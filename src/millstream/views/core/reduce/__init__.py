"""Reduce functions: what trees keep of them, what a query shows."""
