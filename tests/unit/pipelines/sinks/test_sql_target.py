"""The table of PostgreSQL: schedules of the pipeline, a death at every step, other writers."""

from __future__ import annotations

import itertools
import pickle
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.pipelines.sinks import sql_staging, sql_target
from millstream.pipelines.sinks.change_rows import table_of
from millstream.pipelines.sinks.repairing import (
    OP_DELETE,
    OP_PUT,
    OP_ROLLBACK,
    OP_SWEEP,
    Applied,
    RepairingSink,
    Row,
)
from millstream.pipelines.sinks.sql_staging import Stage, reported_from
from millstream.pipelines.sinks.sql_target import SqlTarget
from millstream.upr.core.repair import LoadState
from simulators.pipeline_world import TableWorld
from support.budget import budget
from support.pipelines.node_double import FalseNode
from support.pipelines.postgres import IS_INSTALLED, Postgres
from support.streams.keyed_double import DictTarget, FalseOrigin, false_row

pytest.importorskip("psycopg", reason="the extra postgres is not installed")
pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason="PostgreSQL is not installed")
SCHEDULES = budget(16)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def name() -> str:
    return f"t{next(_numbers)}"


@pytest.fixture
def node() -> FalseNode:
    node = FalseNode(2)
    node.write(0, 1, 1)
    return node


def put(partition: int, seqno: int, key: int, value: int | None, branch: int = 1) -> Row:
    return false_row(partition, branch, seqno, key, value, 2)


def report_of(stage: Stage, rows: Sequence[Row], pieces: int = 3) -> pa.Table:
    """Do the work of some tasks."""
    parts = [rows[n::pieces] for n in range(pieces)]
    batches = (batch for part in parts if part for batch in table_of(part).to_batches())
    reports = list(stage.run(batches))
    return pa.Table.from_batches(reports, sql_staging._REPORT_SCHEMA)


def apply_by_tasks(
    target: SqlTarget, origin: FalseOrigin, rows: Sequence[Row], batch_id: int, query_id: str = ""
) -> Applied:
    """As `applying.apply_staged`."""
    stage = target.open_stage(batch_id, 0.0, query_id)
    reported = reported_from(report_of(stage, rows))
    staged = target.staged(reported, is_unique=False)
    return RepairingSink(target, origin).apply(reported.marks, batch_id, staged, query_id)


def apply_by_driver(
    target: SqlTarget, origin: FalseOrigin, rows: Sequence[Row], batch_id: int, query_id: str = ""
) -> Applied:
    return RepairingSink(target, origin).apply(rows, batch_id, query_id=query_id)


def rows_in(server: Postgres, name: str) -> dict[str, Any]:
    """All that a table has, tombstones included."""
    with sql_target.connected(server.address) as connection:
        found = connection.execute(f'SELECT key, op, branch, seqno, value, load FROM "{name}"')
        return {key: rest for key, *rest in found.fetchall()}


# -- schedules


class SqlWorld(TableWorld):
    """The rows reach the table by the driver."""

    server: Postgres
    name: str

    target: SqlTarget | None = None

    def make_target(self) -> SqlTarget:
        if self.target is not None:
            self.target.close()
        return SqlTarget(self.server.address, self.name)

    def live(self, p: int) -> dict[str, bytes | None]:
        assert self.target is not None
        found = self.target.table().to_pylist()
        return {row["key"]: row["value"] for row in found if row["partition"] == p}


class StagedWorld(SqlWorld):
    """The rows reach the table by tasks, which fail, are repeated, and leave rows behind."""

    number = 0

    def execute(self) -> None:
        had = self.logged
        super().execute()
        self.number += had is not None and self.logged is None

    def apply(self, rows: list[Row]) -> bool:
        assert self.target is not None
        end = self.rng.choice(["well"] * 6 + ["staged", "lost", "applied"])
        stage = self.target.open_stage(self.number, 0.0)
        if self.rng.random() < 0.3:
            report_of(stage, rows[: self.rng.randint(0, len(rows))])  # of an attempt that failed
        reported = reported_from(report_of(stage, rows, self.rng.randint(1, 4)))
        staged = self.target.staged(reported, is_unique=False)
        if end == "applied":
            self.target.commit = lambda _: None  # type: ignore[method-assign]
        if end == "lost" and reported.pieces:
            with sql_target.connected(self.server.address) as connection:
                connection.execute(f'TRUNCATE "{self.target._staging}"')
            with pytest.raises(UnavailableError, match="staged again") as lost:
                self.sink.apply(reported.marks, self.number, staged)
            assert lost.value.code == "staging_lost"
        elif end != "staged":
            self.sink.apply(reported.marks, self.number, staged)
        self.target.__dict__.pop("commit", None)
        if self.restarts and self.rng.random() < 0.3:
            self.target = self.make_target()
            self.sink = self.make_sink()
        return end == "well" or (end == "lost" and not reported.pieces)


@pytest.mark.parametrize("world", [SqlWorld, StagedWorld])
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_the_target_equals_the_source_at_rest(
    server: Postgres, name: str, world: type[SqlWorld], seed: int
) -> None:
    SqlWorld.server, SqlWorld.name = server, name
    made = world(seed, repairs=True)
    made.run()
    assert made.target is not None
    made.target.close()


# -- a death at every step


class Death(BaseException):
    """The process ends here; what it had not committed is undone."""


class Mortal:
    """A connection whose process dies before the effect of a number, or after a commit."""

    def __init__(self, connection: Any, left: list[int]) -> None:
        self._connection, self._left = connection, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        if name not in ("execute", "commit", "cursor"):
            return found

        def effect(*given: Any) -> Any:
            self.step()
            done = found(*given)
            if name == "commit":
                self.step()
            return done

        return effect

    def step(self) -> None:
        self._left[0] -= 1
        if not self._left[0]:
            self._connection.close()
            raise Death


def test_whoever_dies_at_any_step_shows_a_whole_batch_or_nothing(
    server: Postgres, name: str, node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollback, deletion, new rows, and a tombstone, in one batch."""
    origin, real = FalseOrigin(node), sql_staging.connected
    first = [put(0, n, n, n) for n in range(1, 5)] + [put(1, n, n, n) for n in range(1, 4)]
    second = [
        Row(OP_ROLLBACK, 0, 2, 2), put(0, 3, 5, 50, 2), put(1, 4, 1, 10), put(1, 5, 2, None),
    ]  # fmt: skip
    wanted = DictTarget()
    for number, rows in enumerate((first, second)):
        RepairingSink(wanted, origin).apply(rows, number)
    live = wanted.live(0) | wanted.live(1)
    whole_seen = set()
    target = SqlTarget(server.address, name)
    for step in itertools.count(1):
        apply_by_tasks(target, origin, first, 0)
        before, left = rows_in(server, name), [step]

        def connect(address: str, left: list[int] = left) -> Any:
            return Mortal(real(address), left)

        with monkeypatch.context() as patched:
            patched.setattr(sql_target, "connected", connect)
            patched.setattr(sql_staging, "connected", connect)
            is_dead = False
            try:
                apply_by_tasks(target, origin, second, 1)
            except Death:
                is_dead = True
        found = rows_in(server, name)
        apply_by_tasks(target, origin, second, 1)
        whole = rows_in(server, name)
        assert found in (before, whole)
        assert {key: value for key, (op, _, _, value, _) in whole.items() if op == OP_PUT} == live
        whole_seen.add(found == whole)
        if not is_dead:
            break
        with real(server.address) as connection:
            connection.execute(f"TRUNCATE {name}, {name}_positions")
    assert step > 20
    assert whole_seen == {True, False}


def test_a_database_that_crashes_between_staging_and_applying_is_staged_again(
    name: str, node: FalseNode
) -> None:
    server = Postgres()
    try:
        target, origin = SqlTarget(server.address, name), FalseOrigin(node)
        rows = [put(0, n, n, n) for n in range(1, 5)]
        stage = target.open_stage(0, 0.0)
        reported = reported_from(report_of(stage, rows))
        server.stop()
        server.start()
        staged = target.staged(reported, is_unique=False)
        sink = RepairingSink(target, origin)
        with pytest.raises(UnavailableError) as failed:
            sink.apply(reported.marks, 0, staged)
        if failed.value.code == "table_unreachable":  # of the connection from before
            with pytest.raises(UnavailableError) as failed:
                sink.apply(reported.marks, 0, staged)
        assert failed.value.code == "staging_lost"
        assert target.table().num_rows == 0
        apply_by_tasks(target, origin, rows, 0)
        assert target.table().num_rows == 4
        target.close()
    finally:
        server.close()


# -- what a table has


def test_all_columns_are_kept_by_both_ways(server: Postgres, name: str, node: FalseNode) -> None:
    target = SqlTarget(server.address, name)
    row = put(0, 1, 1, 1)._replace(
        cas=-5, rev=3, expiry=4, flags=5, datatype=1, ts=1_700_000_000_000_001, meta=b"m"
    )
    other = row._replace(key="a\0b", value=b"\0")
    binary = row._replace(key="\\xff00")
    apply_by_tasks(target, FalseOrigin(node), [row, other], 0)
    target.begin([0], 2)
    target.put(0, [binary], 1)
    target.commit(0)
    found = {r["key"]: r for r in target.table().to_pylist()}
    assert found.keys() == {row.key, "a\0b", "\\xff00"}
    kept = ("cas", "rev", "expiry", "flags", "datatype", "meta", "load")
    for one in found.values():
        assert one["ts"].isoformat() == "2023-11-14T22:13:20.000001+00:00"
        assert tuple(one[column] for column in kept) == (-5, 3, 4, 5, 1, b"m", 1)
    target.begin([0], 2)
    assert target.versions(0, ["a\0b"])["a\0b"].version == (1, 1)
    assert set(target.keys_above(0, 2, 0)) == found.keys()
    target.close()


def test_what_staged_tasks_do_is_counted(server: Postgres, name: str, node: FalseNode) -> None:
    target, origin = SqlTarget(server.address, name), FalseOrigin(node)
    rows = [put(0, 1, 1, 1), put(0, 2, 2, 2), put(1, 1, 1, None)]
    assert apply_by_tasks(target, origin, rows, 0) == Applied(puts=2, deletions=1)
    assert apply_by_tasks(target, origin, [], 1) == Applied()
    older = [put(0, 1, 2, 9), Row(OP_SWEEP, 0, 1, 0, rev=1)]
    assert apply_by_tasks(target, origin, older, 2) == Applied(puts=1, sweeps=1)
    assert sorted(r["value"] for r in target.table().to_pylist()) == [b"1", b"2"]
    target.close()


def test_of_a_key_that_comes_twice_the_newest_row_counts(
    server: Postgres, name: str, node: FalseNode
) -> None:
    target, origin = SqlTarget(server.address, name), FalseOrigin(node)
    rows = [put(0, n, 1, n) for n in range(1, 9)]
    random.Random(1).shuffle(rows)
    apply_by_tasks(target, origin, rows, 0)
    assert target.table().column("value").to_pylist() == [b"8"]
    stage = target.open_stage(1, 0.0)
    reported = reported_from(report_of(stage, rows))
    target.begin([0], 2)
    with pytest.raises(UsageError, match="several rows of this document") as refused:
        target.staged(reported, is_unique=True).apply()
    assert refused.value.code == "bad_row"
    target.close()


def test_tombstones_are_kept_until_they_are_durable(
    server: Postgres, name: str, node: FalseNode
) -> None:
    target, origin = SqlTarget(server.address, name), FalseOrigin(node)
    origin.durable[0] = 0
    apply_by_tasks(target, origin, [put(0, 1, 1, 1), put(0, 2, 1, None)], 0)
    ((op, *_),) = rows_in(server, name).values()
    assert op == OP_DELETE
    origin.durable[0] = 2
    apply_by_tasks(target, origin, [put(0, 3, 2, 2)], 1)
    assert [op for op, *_ in rows_in(server, name).values()] == [OP_PUT]
    target.begin([0], 2)
    assert target.state(0) == LoadState(floor=2)
    target.close()


# -- other writers


def test_a_second_checkpoint_is_refused(server: Postgres, name: str, node: FalseNode) -> None:
    target, origin = SqlTarget(server.address, name), FalseOrigin(node)
    apply_by_tasks(target, origin, [put(0, 1, 1, 1)], 0, "query-1")
    other = SqlTarget(server.address, name)
    for apply in (apply_by_tasks, apply_by_driver):
        with pytest.raises(UsageError, match="another checkpoint") as refused:
            apply(other, origin, [put(0, 2, 1, 2)], 0, "query-2")
        assert refused.value.code == "other_checkpoint"
    # What was refused is in nobody's way.
    apply_by_tasks(target, origin, [put(0, 2, 1, 2)], 1, "query-1")
    assert target.table().column("value").to_pylist() == [b"2"]
    target.close()


@pytest.mark.parametrize(
    ("batch_id", "why"), [(0, "older copy"), (3, "those between are not there")]
)
def test_a_batch_that_cannot_come_next_is_refused(
    server: Postgres, name: str, node: FalseNode, batch_id: int, why: str
) -> None:
    target, origin = SqlTarget(server.address, name), FalseOrigin(node)
    for number in (0, 1, 1):
        apply_by_tasks(target, origin, [put(0, 1, 1, 1)], number)
    with pytest.raises(UsageError, match=why):
        apply_by_tasks(target, origin, [put(0, 2, 1, 2)], batch_id)
    target.close()


def test_a_driver_that_was_overtaken_changes_nothing(
    server: Postgres, name: str, node: FalseNode
) -> None:
    late, origin = SqlTarget(server.address, name), FalseOrigin(node)
    stage = late.open_stage(0, 0.0)
    reported = reported_from(report_of(stage, [put(0, 1, 1, 1)]))
    driver = SqlTarget(server.address, name)
    apply_by_tasks(driver, origin, [put(0, 1, 1, 1)], 0)
    apply_by_tasks(driver, origin, [put(0, 2, 1, None)], 1)
    with pytest.raises(UnavailableError) as failed:
        report_of(stage, [put(0, 1, 1, 1)])
    assert failed.value.code == "staging_lost"
    staged = late.staged(reported, is_unique=False)
    with pytest.raises(UsageError, match="older copy"):
        RepairingSink(late, origin).apply(reported.marks, 0, staged)
    with pytest.raises(UsageError, match="older copy"):
        late.open_stage(0, 0.0)
    assert driver.table().num_rows == 0
    driver.close()


def test_two_transactions_exclude_each_other(server: Postgres, name: str) -> None:
    one, other = SqlTarget(server.address, name), SqlTarget(server.address, name)
    one.begin([0], 1)
    with pytest.raises(UnavailableError, match="another query") as refused:
        other.begin([0], 1)
    assert refused.value.code == "target_changed"
    one.close()
    other.begin([0], 1)
    other.close()


def test_a_pickled_table_is_opened_again(server: Postgres, name: str) -> None:
    target = pickle.loads(pickle.dumps(SqlTarget(server.address, name)))
    assert target.table().num_rows == 0
    target.close()


# -- what is refused


def test_a_table_of_something_else_is_refused(server: Postgres, name: str) -> None:
    with sql_target.connected(server.address) as connection:
        connection.execute(f"CREATE TABLE {name} (n integer)")
    with pytest.raises(UsageError, match="has the columns n, a table of changes") as failed:
        SqlTarget(server.address, name)
    assert failed.value.code == "bad_schema"


def test_a_wrong_address_is_an_error() -> None:
    with pytest.raises(UsageError, match="not understood"):
        SqlTarget("postgres:no address", "t")
    with pytest.raises(UnavailableError, match="cannot be read or written") as failed:
        SqlTarget("postgresql://127.0.0.1:1/x", "t")
    assert failed.value.code == "table_unreachable"


def test_a_missing_package_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"pip install 'millstream\[postgres\]'"):
        SqlTarget("postgresql://nowhere", "t")
