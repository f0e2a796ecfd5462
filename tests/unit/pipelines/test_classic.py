from __future__ import annotations

import pytest

from millstream.errors import UsageError
from millstream.pipelines.classic import is_connect, refusal, require_classic


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
