from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import UsageError
from millstream.pipelines.classic import is_connect, refusal, require_classic
from millstream.pipelines.index.on_spark import IndexPipeline
from millstream.pipelines.lake.table_query import TableQuery
from millstream.pipelines.lake.tasks import run_tasks


class Remote:
    __module__ = "pyspark.sql.connect.session"


class Classic:
    __module__ = "pyspark.sql.session"


def test_a_session_of_spark_connect_is_told_by_its_class() -> None:
    assert is_connect(Remote())
    assert not is_connect(Classic())
    require_classic(Classic(), "all")
    with pytest.raises(UsageError, match="a backup cannot work over Spark Connect") as refused:
        require_classic(Remote(), "a backup")
    assert refused.value.code == refusal("it").code == "needs_classic_session"


@pytest.mark.parametrize(
    "run",
    [
        lambda spark, path: run_tasks(spark, print, []),
        lambda spark, path: TableQuery({}, path, on_progress=print).run(spark),
        lambda spark, path: IndexPipeline.run(None, spark),  # type: ignore[arg-type]
    ],
)
def test_features_that_need_driver_connections_refuse_spark_connect(
    run: Callable[[Any, Path], object], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="cannot work over Spark Connect"):
        run(Remote(), tmp_path / "none")
    assert not (tmp_path / "none").exists()
