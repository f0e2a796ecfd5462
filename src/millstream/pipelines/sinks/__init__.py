"""Sinks of Spark pipelines: they apply the rows of a change stream."""
