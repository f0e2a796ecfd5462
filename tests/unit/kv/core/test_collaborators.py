"""`kv.core.collaborators`: what a bucket asks of its engine, and what it is without one."""

from __future__ import annotations

import asyncio

from millstream.kv.core.collaborators import Attachments, Collaborators
from millstream.model.partitions import PartitionState
from support.kv.log_double import new_bucket


def test_a_bucket_asks_those_it_was_made_with() -> None:
    hurried, wiped = list[str](), list[int]()
    bucket = new_bucket(
        1,
        collaborators=Collaborators(
            hurry=lambda: hurried.append("hurry"), wipe=lambda at_ns, _: wiped.append(at_ns)
        ),
    )
    bucket.hurry()
    bucket.wipe(7, lambda: None)
    assert (hurried, wiped) == (["hurry"], [7])


def test_without_an_engine_copies_stay_as_they_are_and_no_attachments_are_kept() -> None:
    bucket = new_bucket(1)
    asyncio.run(bucket.copies.set_state(0, PartitionState.DEAD))
    asyncio.run(bucket.stop_copy(0, bucket.partitions[0].epoch))
    asyncio.run(bucket.copies.take_over(0, PartitionState.ACTIVE, 1))
    asyncio.run(bucket.copies.stand_back(0))
    assert bucket.partitions[0].state is PartitionState.ACTIVE
    assert asyncio.run(bucket.copies.undo(0, 1, 1, 1)) == 0
    assert bucket.attachments == Attachments()
    assert bucket.attachments.read(b"name", 0, 1) is None
