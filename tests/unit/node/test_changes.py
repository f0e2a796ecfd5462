"""The changes of a node's buckets."""

import pytest

from changing_bucket import ChangingBucket
from millstream.errors import ConditionError
from millstream.node.changes import NodeChanges


async def test_a_bucket_has_one_list_of_readers_which_ends_with_it():
    bucket = ChangingBucket()
    changes = NodeChanges(lambda name: {"orders": bucket}[name])
    found = changes.of("orders")
    assert changes.of("orders") is found
    assert found.latest().purge_epoch == 0
    counted = NodeChanges(lambda name: {"orders": bucket}[name], lambda name: len(name))
    assert counted.of("orders").latest().purge_epoch == counted.of("orders").purge_epoch() == 6
    walk = found.open(found.start_of(0), restarts=False)
    changes.drop(bucket)
    changes.drop(bucket)
    with pytest.raises(ConditionError):
        await walk.wait(60)
    assert changes.of("orders") is not found
    with pytest.raises(KeyError):
        changes.of("none")
