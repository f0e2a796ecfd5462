"""Refuses, at import, a PySpark that this source cannot work with, and one without Arrow.

Before 4.2 a Python source had no admission control and no "available now": one design is better
than two.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

__all__ = ["PYSPARK_MIN", "require_pyspark"]

PYSPARK_MIN: Final = (4, 2)
_BESIDES: Final = ("pyarrow",)
"""Packages that Python sources of Spark need and PySpark does not install. (Only drivers need
pandas, and not for all pipelines: docs/guides/spark-cluster.md.)"""
_WANTED: Final = "pip install 'millstream[spark]'"


def require_pyspark() -> None:
    """Check the PySpark installed.

    Raises:
        ImportError: there is none, it is older than `PYSPARK_MIN`, or it lacks what it needs
            for Python sources.
    """
    try:
        from pyspark import __version__
    except ImportError as error:
        raise ImportError(
            f"millstream.pipelines needs PySpark: {_WANTED}", name="pyspark"
        ) from error
    numbers = [int(part) for part in __version__.split(".")[:2] if part.isdecimal()]
    if tuple(numbers) < PYSPARK_MIN:
        needed = ".".join(map(str, PYSPARK_MIN))
        raise ImportError(
            f"millstream.pipelines needs PySpark {needed} or newer, this is {__version__}: older "
            f"ones have no admission control for Python sources. {_WANTED}",
            name="pyspark",
        )
    for package in _BESIDES:
        try:
            import_module(package)
        except ImportError as error:
            raise ImportError(
                f"millstream.pipelines needs {package}: {_WANTED}", name=package
            ) from error


require_pyspark()
