"""What a database knows of others, on a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.databases.documents.local_documents import Documents
from millstream.databases.jobs.coverage import Coverage
from millstream.databases.scans.feeds import NodeChanges
from millstream.documents.tokens import Vector
from millstream.gateway.core.api.coverage import Puller
from millstream.kv.aio.engine import BucketEngine
from millstream.model.position import Position
from millstream.replication.core.coverage import Claim, Record, record_to_json
from millstream.replication.core.places import Place
from support.kv.running_bucket import changes_here, opened, put

ORIGIN = Vector(7, (Position(0xA, 3, 3, 3),))


class OneBucket:
    def __init__(self, running: BucketEngine) -> None:
        self.running = running

    def engine(self, name: str) -> BucketEngine:
        return self.running


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[BucketEngine]:
    engine = await opened(tmp_path / "b")
    yield engine
    await engine.stop()


def coverage_of(running: BucketEngine) -> tuple[Coverage, NodeChanges]:
    changes = changes_here(running)
    documents = Documents(OneBucket(running), changes)  # type: ignore[arg-type]
    return Coverage(documents, changes, lambda: 10**18), changes


def record(stamp: Vector, origin: str = "u-origin") -> Record:
    """What the database has of another one, by way of a third."""
    return Record(
        origin, "log", "c", Place(3, ORIGIN), stamp, via=("u-b",), hops=2, created_ms=1e12
    )


async def test_records_are_kept_told_and_forgotten(running: BucketEngine) -> None:
    coverage, changes = coverage_of(running)
    stamp = changes.of("b").latest()
    kept = record(stamp)
    await coverage.store("b", [kept], ())
    [found] = await coverage.records("b", ())
    assert record_to_json(found)["origin"] == "u-origin"
    assert await coverage.records("b", ["u-origin"]) == [found]
    assert await coverage.records("b", ["another"]) == []
    await coverage.store("b", [], [found.name])
    assert await coverage.records("b", ()) == []


async def test_a_record_of_lost_history_is_told_to_nobody(running: BucketEngine) -> None:
    coverage, changes = coverage_of(running)
    await running.documents.update([(b"k", put())], 9, is_durable=True)
    await coverage.store("b", [record(changes.of("b").latest())], ())
    assert len(await coverage.records("b", ())) == 1
    await running.copies.roll_back(running.bucket.partition_for(b"k").partition_id, 0)
    assert await coverage.records("b", ()) == []


async def test_only_closed_ends_have_something_to_tell(running: BucketEngine) -> None:
    coverage, changes = coverage_of(running)
    latest = changes.of("b").latest()
    await coverage.store("b", [record(latest)], ())
    assert len(await coverage.emitted("b", latest, Puller("u-puller"))) == 1
    assert await coverage.emitted("b", latest, Puller("u-origin")) == []
    inside = latest._replace(positions=(Position(1, 1, 0, 2), *latest.positions[1:]))
    assert await coverage.emitted("b", inside, Puller("u-puller")) == []
    whole = Vector(ORIGIN.origin, tuple(Position(1, 3, 3, 3) for _ in latest.positions))
    wide = record(latest)._replace(place=Place(whole.text(), whole))
    await coverage.store("b", [wide], ())
    (part,) = await coverage.emitted("b", inside, Puller("u-puller", takes_parts=True))
    assert part.place.vector is not None
    assert part.place.vector.positions == (Position(), *whole.positions[1:])


async def test_what_no_log_says_is_not_verified(running: BucketEngine) -> None:
    coverage, _ = coverage_of(running)
    claims = [Claim("none", "c", Place(0, ORIGIN), False)]
    assert await coverage.verify("b", claims) == [None]
