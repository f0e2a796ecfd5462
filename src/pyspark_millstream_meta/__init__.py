"""Found by Spark, which looks for modules named `pyspark_*`: registers `millstream.meta`."""

from millstream.pipelines.change_stream.meta_source import MetaDataSource as DefaultSource

__all__ = ["DefaultSource"]
