"""The transactional protocol under kills between any two effects, of any process.

`QueryDouble` does what Spark does: tasks stage, perhaps twice at a time, the driver commits,
aborts what fails, and repeats with the same number what is not in its commit log. Every attempt
has rows of its own (`x...`): if rows of two attempts of one batch, or a part of one, are in the
bucket in the end, it shows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from millstream.client.documents import Stored
from millstream.client.writes import Write
from millstream.errors import ConditionError, MillstreamError, UnavailableError, UsageError
from millstream.pipelines.change_stream.control import ask_again
from millstream.pipelines.sinks import staging, transaction
from millstream.pipelines.sinks.sink_options import SINK_PREFIX
from millstream.pipelines.sinks.staging import STAGED_SECONDS, Segment, stage
from millstream.pipelines.sinks.transaction import TransactionalSink
from millstream.pipelines.sinks.writing import Persistence
from support.budget import budget
from support.pipelines.sink_bucket import Killed, SinkBucketDouble

HEADER = SINK_PREFIX + "s"
BATCHES = 3
TASKS = 2


class World(SinkBucketDouble):
    """A bucket that remembers which segments each batch was committed with."""

    def __init__(self) -> None:
        super().__init__()
        self.staged: dict[str, list[Write]] = {}
        self.listed: list[dict[str, Any]] = []

    def insert(self, key: str, value: Any, *, durability: str = "memory") -> Stored:
        return self._noted(value, super().insert(key, value, durability=durability))

    def replace(self, key: str, value: Any, *, cas: int = 0, durability: str = "memory") -> Stored:
        return self._noted(value, super().replace(key, value, cas=cas, durability=durability))

    def _done(self, write: Write) -> Stored | MillstreamError:
        result = super()._done(write)
        if write.key == HEADER.encode() and isinstance(result, Stored):
            self.listed.append(msgspec.json.decode(write.value or b""))
        return result

    def _noted(self, value: Any, stored: Stored) -> Stored:
        assert isinstance(value, transaction.Header)
        return stored

    def expected(self) -> dict[bytes, bytes]:
        """The documents there must be by what the headers listed, in their order."""
        found: dict[bytes, bytes] = {}
        names: dict[int, list[str]] = {}
        for header in self.listed:
            mine = [segment[0] for segment in header["segments"]]
            assert names.setdefault(header["batch"], mine) == mine, "a batch was decided twice"
        assert sorted(names) == list(names) == list(range(len(names)))
        for mine in names.values():
            for name in mine:
                for row in self.staged[name]:
                    if row.value is None:
                        found.pop(row.key, None)
                    else:
                        found[row.key] = row.value
        return found


class QueryDouble:
    """A query over `BATCHES` batches; `committed` is its commit log, which outlives kills."""

    attempts = itertools.count()

    def __init__(self, world: World, *, speculates: bool = False) -> None:
        self.world = world
        self.speculates = speculates
        self.committed = 0

    def run(self) -> None:
        """Run to the end."""
        while self.committed < BATCHES:
            self.batch(self.committed)
            self.committed += 1

    def batch(self, batch_id: int) -> None:
        segments = [self.task(batch_id, n) for n in range(TASKS)]
        if self.speculates:
            segments[0] = self.task(batch_id, 0)  # the first attempt lost; nobody names it
        sink = TransactionalSink(self.world, "s")
        try:
            sink.commit(batch_id, "q", segments)
        except MillstreamError:
            sink.abort(segments)
            raise

    def task(self, batch_id: int, number: int) -> Segment:
        attempt = next(self.attempts)
        name = f"{batch_id}.{number}.0.{attempt}"
        rows = list(rows_of(batch_id, number, attempt))
        self.world.staged[name] = rows
        return stage(self.world, "s", name, rows)


def rows_of(batch_id: int, task: int, attempt: int) -> Iterator[Write]:
    """Keys that later batches overwrite or delete, and one that only this attempt has."""
    said = f"{batch_id}.{attempt}".encode()
    yield Write(f"k{batch_id % 2}.{task}".encode(), said)
    yield Write(f"all.{task}".encode(), said)
    if batch_id != 1:
        yield Write(f"back.{task}".encode(), said)
    else:
        yield Write(f"back.{task}".encode(), None)
        yield Write(f"never.{task}".encode(), None)
    yield Write(f"x{attempt}".encode(), said)


def check(world: World, *, orphans: bool) -> None:
    assert world.own_documents() == world.expected()
    if orphans:
        world.now += STAGED_SECONDS
    assert set(world.documents(SINK_PREFIX.encode())) == {HEADER.encode()}
    world.crash()
    assert world.own_documents() == world.expected()


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS_MAX", 3)


def test_a_clean_run() -> None:
    world = World()
    QueryDouble(world).run()
    check(world, orphans=False)
    assert [(h["batch"], h["is_applied"]) for h in world.listed] == [
        (batch, applied) for batch in range(BATCHES) for applied in (False, True)
    ]


def lives(world: World, query: QueryDouble, *, loses: bool) -> None:
    """Run until the end however often it is killed by what was planned before."""
    while True:
        try:
            query.run()
        except Killed:
            world.revive()
            if loses:
                world.crash()
            query.world = world
        else:
            return


def effects_of_a_run() -> int:
    world = World()
    QueryDouble(world, speculates=True).run()
    return world.effects


def every_kill(*, dies_after: bool, loses: bool) -> None:
    total = effects_of_a_run()
    assert total > 60
    for at in range(1, total + 1):
        world = World()
        world.kill_at, world.dies_after = at, dies_after
        lives(world, QueryDouble(world, speculates=True), loses=loses)
        check(world, orphans=True)


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("dies_after", [False, True])
def test_a_kill_between_any_two_effects(dies_after: bool, loses: bool) -> None:
    every_kill(dies_after=dies_after, loses=loses)


def random_life(seed: int) -> None:
    """Kills, lost tails, failing rows and commit logs that were not written, as they come."""
    rng = random.Random(seed)
    world = World()
    query = QueryDouble(world, speculates=rng.random() < 0.5)
    for _ in range(rng.randrange(6)):
        world.kill_at, world.dies_after = rng.randrange(1, 70), rng.random() < 0.5
        if rng.random() < 0.3:
            world.refusals = {f"k0.{rng.randrange(TASKS)}".encode(): UnavailableError("full")}
        try:
            query.run()
        except (Killed, MillstreamError):
            world.revive()
        world.refusals = {}
        if rng.random() < 0.5:
            world.crash(*rng.choice([(), (0,), (1,)]))
        if query.committed and rng.random() < 0.3:
            newest = world.listed[-1]["batch"]
            query.committed = min(query.committed, newest)
    world.kill_at = None
    query.run()
    check(world, orphans=True)


@pytest.mark.parametrize("block", range(4))
def test_random_schedules(block: int) -> None:
    for seed in range(block * 100, block * 100 + budget(100)):
        random_life(seed)


class Reluctant(World):
    """Its nodes refuse a deletion that is to be persisted the first time."""

    def write_each(
        self, writes: Iterable[Write], *, durability: str = "memory"
    ) -> Iterator[tuple[Write, Stored | MillstreamError]]:
        for write in writes:
            if write.value is None and durability == "persisted" and not self.refused:
                self.refused.append(write.key)
                yield write, UnavailableError("copies are away", code="durability_impossible")
            else:
                yield from super().write_each([write], durability=durability)

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[bytes] = []


def overtaken_at(
    effect: int, batch_id: int = 1, *, world: World | None = None, breaks_after: int | None = None
) -> bool:
    """Let a second driver overtake the first one at an effect of its commit of a batch.

    Args:
        effect: of the commit.
        batch_id: of the batch.
        world: where.
        breaks_after: effects after which the first one's connection breaks.

    Returns:
        Whether the first one came so far.
    """
    world, codes = world or World(), {"other_checkpoint"}
    first, second = QueryDouble(world), QueryDouble(world)
    for earlier in range(batch_id):
        first.batch(earlier)
    segments = [first.task(batch_id, n) for n in range(TASKS)]

    has_overtaken = False

    def overtake() -> None:
        nonlocal has_overtaken
        has_overtaken = True
        second.batch(batch_id)
        second.batch(batch_id + 1)
        if breaks_after is not None:
            world.break_at(breaks_after)

    world.before_effect = [*[lambda: None] * effect, overtake]
    sink = TransactionalSink(world, "s")
    try:
        ask_again(world, lambda _: sink.commit(batch_id, "q", segments))
    except MillstreamError as error:
        codes.add(error.code)
        world.before_effect = []
        sink.abort(segments)
    happened = has_overtaken
    if not happened:
        world.before_effect = []
        overtake()
    world.before_effect = []
    check(world, orphans=True)
    assert codes == {"other_checkpoint"}
    return happened


def every_overtaking(batch_id: int = 1) -> None:
    effect = 0
    while overtaken_at(effect, batch_id):
        effect += 1
    assert effect > 15


def test_a_late_insert_of_a_key_that_was_deleted_since_is_taken_back() -> None:
    """Batch 1 deletes keys that batch 0 inserts."""
    every_overtaking(0)


@pytest.mark.parametrize("breaks_after", range(1, 8))
def test_a_late_insert_is_taken_back_after_a_lost_connection(breaks_after: int) -> None:
    effect = 0
    while overtaken_at(effect, 0, breaks_after=breaks_after):
        effect += 1


def test_a_late_insert_is_taken_back_after_a_refusal() -> None:
    effect, refused = 0, []
    while overtaken_at(effect, 0, world=(world := Reluctant())):
        effect, refused = effect + 1, refused + world.refused
    assert refused


def test_a_driver_that_was_overtaken_changes_nothing_more() -> None:
    every_overtaking()


def test_a_commit_is_repeated_without_effect_on_documents() -> None:
    world = World()
    query = QueryDouble(world)
    query.batch(0)
    query.batch(1)
    cas = {key: world.entries[key].cas for key in world.own_documents()}
    query.batch(1)
    assert {key: world.entries[key].cas for key in world.own_documents()} == cas
    check(world, orphans=False)


def test_abort_after_a_failed_commit_keeps_what_was_committed() -> None:
    """Spark aborts with all messages, also where the header lists them already."""
    world = World()
    query = QueryDouble(world)
    world.refusals = {b"all.1": UnavailableError("disk full", code="busy")}
    with pytest.raises(UnavailableError, match="disk full"):
        query.batch(0)
    assert len(world.documents(SINK_PREFIX.encode())) > 1
    world.refusals = {}
    query.batch(0)  # finishes the rows of the first attempt, drops its own
    TransactionalSink(world, "s").abort([query.task(1, 0)])
    check(world, orphans=False)


def test_a_failed_task_leaves_only_rows_that_expire() -> None:
    world = World()
    query = QueryDouble(world)
    query.task(0, 0)
    TransactionalSink(world, "s").abort([])
    assert world.documents()
    query.run()
    check(world, orphans=True)


def test_rows_that_expired_before_they_were_applied_come_from_the_next_attempt() -> None:
    world = World()
    query = QueryDouble(world)
    query.batch(0)
    late = [query.task(1, n) for n in range(TASKS)]
    sink = TransactionalSink(world, "s")
    world.now += STAGED_SECONDS
    with pytest.raises(UnavailableError, match="rows of batch 1 that were staged") as failed:
        sink.commit(1, "q", late)
    assert failed.value.code == "staging_lost"
    world.refusals = {b"all.0": UnavailableError("full")}
    with pytest.raises(UnavailableError, match="full"):
        query.batch(1)
    world.refusals = {}
    world.now += STAGED_SECONDS  # listed, not applied, and gone
    with pytest.raises(UnavailableError, match="rows of batch 1 that were staged"):
        sink.commit(2, "q", [query.task(2, 0)])
    query.batch(1)
    attempt = int(world.listed[-1]["segments"][0][0].rsplit(".", 1)[1])
    assert world.documents()[b"all.0"] == b"1.%d" % attempt
    assert world.listed[-1]["is_applied"]


def test_concurrent_writes_do_not_stop_a_batch() -> None:
    world = World()
    query = QueryDouble(world)
    query.batch(0)
    total = 0

    def other() -> None:
        nonlocal total
        total += 1
        if total < 40:
            world._done(Write(b"all.0", b"theirs"))

    world.before_effect = [other] * 400
    query.batch(1)
    world.before_effect = []
    check(world, orphans=False)


def test_endless_concurrent_writes_are_reported() -> None:
    world = World()
    query = QueryDouble(world)
    world.before_effect = [lambda: world._done(Write(b"all.0", b"theirs")) and None] * 4000
    with pytest.raises(UnavailableError, match=r"others keep changing document b'all\.0'"):
        query.batch(0)


@pytest.mark.parametrize(
    ("batch_id", "query_id", "said"),
    [
        (2, "other", "which has another checkpoint"),
        (0, "q", "the checkpoint is an older copy"),
        (3, "q", "those between are not there"),
    ],
)
def test_a_batch_out_of_sequence_is_refused(batch_id: int, query_id: str, said: str) -> None:
    world = World()
    query = QueryDouble(world)
    query.batch(0)
    query.batch(1)
    segment = query.task(batch_id, 0)
    with pytest.raises(UsageError, match=said) as failed:
        TransactionalSink(world, "s").commit(batch_id, query_id, [segment])
    assert failed.value.code == "other_checkpoint"
    TransactionalSink(world, "s").abort([segment])
    check(world, orphans=False)


def test_a_sink_that_the_bucket_does_not_know_begins_with_batch_0() -> None:
    with pytest.raises(UsageError, match="has no batch, this is batch 7"):
        TransactionalSink(World(), "s").commit(7, "q", [])


def test_a_batch_without_rows_is_committed_at_once() -> None:
    world = World()
    sink = TransactionalSink(world, "s")
    sink.commit(0, "q", [Segment("0.0.0.t", 0, 0)])
    assert [header["is_applied"] for header in world.listed] == [True]
    sink.commit(0, "q", [Segment("0.0.0.u", 0, 0)])
    sink.commit(1, "q", [])
    assert [header["batch"] for header in world.listed] == [0, 1]


@pytest.mark.parametrize(
    ("content", "code"),
    [({"v": 1}, "bad_header"), ({"sink": "s", "query": "q", "batch": 1, "is_applied": True,
                                  "v": 2}, "newer_version")],
)  # fmt: skip
def test_a_foreign_header_is_refused(content: dict[str, Any], code: str) -> None:
    world = World()
    SinkBucketDouble.insert(world, HEADER, content)
    with pytest.raises(UsageError) as failed:
        TransactionalSink(world, "s").commit(2, "q", [])
    assert failed.value.code == code


def test_constant_overtaking_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Stored:
        raise ConditionError("changed", code="key_exists")

    world = World()
    monkeypatch.setattr(world, "insert", never)
    with pytest.raises(ConditionError, match="commits to it all the time") as failed:
        TransactionalSink(world, "s").commit(0, "q", [])
    assert failed.value.code == "taken_over"


# -- the schedules find what they are for


SINK = TransactionalSink
SETTLE, WRITE, SWAP = SINK._settle, SINK._write, SINK._swap


def rows_in(sink: Any, header: Any) -> list[Write]:
    keys = [key for s in header.segments for key in staging.chunk_keys("s", s)]
    return [row for key in keys for row in sink._rows(key)]


def early(sink: Any, header: Any, cas: int) -> int:
    list(sink._bucket.write_each(rows_in(sink, header)))
    return SWAP(sink, header, cas)


def hasty(sink: Any, header: Any, cas: int) -> None:
    rows = rows_in(sink, header)
    sink._remove(header.segments)
    list(sink._bucket.write_each(rows))
    sink._swap(msgspec.structs.replace(header, is_applied=True), cas)


def boastful(sink: Any, header: Any, cas: int) -> None:
    applied = msgspec.structs.replace(header, is_applied=True)
    SETTLE(sink, applied, sink._swap(applied, cas))


def blunt(sink: Any, rows: Any) -> Any:
    return WRITE(sink, (row._replace(cas=0, is_insert=False) for row in rows))


PLANTS: dict[str, tuple[Any, str, Any]] = {
    "applied before it is listed": (SINK, "_swap", early),
    "removed before it is applied": (SINK, "_settle", hasty),
    "said before it is done": (SINK, "_settle", boastful),
    "written without conditions": (SINK, "_write", blunt),
    "not persisted when the header says so": (Persistence, "wait", lambda self: None),
    "a batch that is done is done again": (SINK, "_is_settled", lambda *_: False),
    "abort removes all": (SINK, "abort", SINK._remove),
    "late inserts stay": (SINK, "_take_back", lambda *_: None),
}
FINDERS: dict[str, Callable[[], None]] = {
    "applied before it is listed": lambda: every_kill(dies_after=False, loses=False),
    "removed before it is applied": lambda: every_kill(dies_after=False, loses=False),
    "said before it is done": lambda: every_kill(dies_after=False, loses=False),
    "written without conditions": every_overtaking,
    "not persisted when the header says so": lambda: every_kill(dies_after=False, loses=True),
    "a batch that is done is done again": lambda: every_kill(dies_after=True, loses=False),
    "late inserts stay": lambda: every_overtaking(0),
    "abort removes all": test_abort_after_a_failed_commit_keeps_what_was_committed,
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_rule_that_is_broken_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(*PLANTS[name])
    with pytest.raises((AssertionError, MillstreamError, Killed)):
        FINDERS[name]()
