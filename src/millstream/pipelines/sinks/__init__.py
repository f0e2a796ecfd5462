"""Sinks of Spark pipelines: what becomes of the rows of a change stream."""
