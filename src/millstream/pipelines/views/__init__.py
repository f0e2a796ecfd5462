"""Rows of views as a Spark source."""
