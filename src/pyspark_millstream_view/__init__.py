"""Found by Spark, which looks for modules named `pyspark_*`: registers `millstream.view`."""

from millstream.pipelines.views.source import ViewDataSource as DefaultSource

__all__ = ["DefaultSource"]
