"""Spark pipelines: the only place of this package that knows PySpark.

Importing it loads nothing heavy: public names are found when first used, so that the search for
a Java (`pipelines.java`) works before PySpark can start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.pipelines.documents import Documents, Groups, changes
    from millstream.pipelines.java import find_java_home
    from millstream.pipelines.monitoring import Figures, monitor
    from millstream.pipelines.relations import Relation
    from millstream.pipelines.session import local_session
    from millstream.pipelines.sinks.applying import apply_changes
    from millstream.pipelines.sinks.bucket_target import BucketTarget
    from millstream.pipelines.sinks.callback_target import CallbackTarget
    from millstream.pipelines.sinks.delta_target import DeltaTarget
    from millstream.pipelines.sinks.parquet_target import ParquetTarget
    from millstream.pipelines.sinks.sql_target import SqlTarget
    from millstream.pipelines.source import MillstreamDataSource, register

__all__ = [
    "BucketTarget",
    "CallbackTarget",
    "DeltaTarget",
    "Documents",
    "Figures",
    "Groups",
    "MillstreamDataSource",
    "ParquetTarget",
    "Relation",
    "SqlTarget",
    "apply_changes",
    "changes",
    "find_java_home",
    "local_session",
    "monitor",
    "register",
]

_HOMES = {
    "BucketTarget": "millstream.pipelines.sinks.bucket_target",
    "CallbackTarget": "millstream.pipelines.sinks.callback_target",
    "DeltaTarget": "millstream.pipelines.sinks.delta_target",
    "Documents": "millstream.pipelines.documents",
    "Figures": "millstream.pipelines.monitoring",
    "Groups": "millstream.pipelines.documents",
    "ParquetTarget": "millstream.pipelines.sinks.parquet_target",
    "Relation": "millstream.pipelines.relations",
    "SqlTarget": "millstream.pipelines.sinks.sql_target",
    "apply_changes": "millstream.pipelines.sinks.applying",
    "changes": "millstream.pipelines.documents",
    "MillstreamDataSource": "millstream.pipelines.source",
    "find_java_home": "millstream.pipelines.java",
    "local_session": "millstream.pipelines.session",
    "monitor": "millstream.pipelines.monitoring",
    "register": "millstream.pipelines.source",
}

_SPARK = ("numpy", "pandas", "py4j", "pyarrow", "pyspark")
"""Packages that the extra `spark` installs."""


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562).

    Raises:
        ImportError: a package that the extra `spark` has is missing.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'millstream.pipelines' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _SPARK:
            raise
        raise ImportError(
            f"millstream.pipelines.{name} needs {package}: pip install 'millstream[spark]'",
            name=package,
        ) from None
