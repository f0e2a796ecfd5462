import pytest

from millstream.errors import ConditionError, UsageError
from millstream.views.aio.index_host import IndexHost

ORDER = {
    "uuid": "u1", "name": "orders", "partition_count": 4, "active": [0, 1], "passive": [2],
    "resting": [],
    "designs": {"d": {"views": {"v": {"map": "function(d){}"}}}},
}  # fmt: skip


async def test_an_unknown_call_is_refused(tmp_path):
    host = IndexHost(tmp_path, "unix:/nowhere")
    with pytest.raises(UsageError):
        await host.call("nonsense", {})


async def test_a_bucket_is_known_until_it_is_dropped(tmp_path):
    host = IndexHost(tmp_path, "unix:/nowhere")
    await host.call("set_bucket", ORDER)
    assert (await host.call("info", {"uuid": "u1", "design": "d"})).head
    for uuid, design in (("u1", "other"), ("u2", "d")):
        with pytest.raises(ConditionError):
            await host.call("info", {"uuid": uuid, "design": design})
    await host.call("drop_bucket", {"uuid": "u1"})
    with pytest.raises(ConditionError):
        await host.call("info", {"uuid": "u1", "design": "d"})
    await host.stop()
