"""Frozen values and pure functions on them: what every plane may know."""
