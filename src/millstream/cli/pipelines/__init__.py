"""Commands of Spark pipelines."""
