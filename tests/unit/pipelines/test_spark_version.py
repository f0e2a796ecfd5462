from __future__ import annotations

import sys
from types import ModuleType

import pytest

from millstream import pipelines
from millstream.pipelines.spark_version import require_pyspark


def with_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    module = ModuleType("pyspark")
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark", module)


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0.dev1", "5.0"])
def test_newer_ones_are_accepted(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    with_version(monkeypatch, version)
    require_pyspark()


@pytest.mark.parametrize("version", ["3.5.1", "4.0.0", "4.1.2"])
def test_older_ones_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    with_version(monkeypatch, version)
    with pytest.raises(ImportError, match=f"needs PySpark 4.2 or newer, this is {version}"):
        require_pyspark()


def test_a_missing_pyspark_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ImportError, match=r"pip install 'millstream\[spark\]'"):
        require_pyspark()


@pytest.mark.parametrize("package", ["pyarrow"])
def test_a_pyspark_without_its_companions_is_told_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    with_version(monkeypatch, "4.2.0")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'millstream\[spark\]'"):
        require_pyspark()


def test_a_public_name_without_spark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr(pipelines, "_HOMES", {"changes": "pyspark.no_such"})
    with pytest.raises(ImportError, match=r"changes needs pyspark: pip .*'millstream\[spark\]'"):
        _ = pipelines.changes
