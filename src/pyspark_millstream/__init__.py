"""Found by Spark, which looks for modules named `pyspark_*`: registers `format("millstream")`."""

from millstream.pipelines.source import MillstreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
