"""The changes of a node's buckets."""

import pytest

from millstream.databases.purges import Purges
from millstream.databases.scans.feeds import NodeChanges
from millstream.errors import ConditionError
from support.streams.changing_bucket import ChangingBucket


class Running:
    """What is asked of a bucket that runs."""

    def __init__(self):
        self.bucket = ChangingBucket()
        self.purge_epoch = 0

    async def count_purge(self):
        self.purge_epoch += 1


def changes_of(running):
    find = {"orders": running}.__getitem__
    return NodeChanges(find, lambda name: None, lambda name, node: None, Purges(find, lambda: 0.0))


async def test_a_bucket_has_one_list_of_readers_which_ends_with_it():
    running = Running()
    changes = changes_of(running)
    found = changes.of("orders")
    assert changes.of("orders") is found
    assert await changes.whole("orders") is found, "without a map it is here"
    assert found.latest().purge_epoch == 0
    walk = found.open(found.start_of(0), restarts=False)
    changes.drop(running.bucket)
    changes.drop(running.bucket)
    with pytest.raises(ConditionError):
        await walk.wait(60)
    with pytest.raises(ConditionError):
        found.open(found.start_of(0), restarts=False).has_more()
    assert changes.of("orders") is not found
    with pytest.raises(KeyError):
        changes.of("none")


async def test_a_purge_is_counted_before_it_is_made_and_afterwards():
    running = Running()
    changes = changes_of(running)
    async with changes.purging("orders"):
        assert changes.of("orders").purge_epoch() == 1
    assert changes.of("orders").latest().purge_epoch == 2
    with pytest.raises(KeyError):
        async with changes.purging("orders"):
            raise KeyError("it may have been made")
    assert changes.of("orders").purge_epoch() == 4
