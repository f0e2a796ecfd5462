import os

import pytest

from millstream.errors import UnavailableError
from millstream.node.index_child import IndexOrder
from millstream.node.indexes import Indexes


async def test_without_an_index_process_views_cannot_be_asked_now(tmp_path):
    indexes = Indexes(
        IndexOrder(os.getpid(), str(tmp_path), "unix:/no", f"{tmp_path}/i", (), "info", False)
    )
    with pytest.raises(UnavailableError) as raised:
        await indexes.query("b", "d", "v", {})
    assert raised.value.code == "index_unavailable"
    assert raised.value.retry == "backoff"
    with pytest.raises(UnavailableError):
        await indexes.info("b", "d")
    assert await indexes.tasks() == []
    await indexes.stop()
