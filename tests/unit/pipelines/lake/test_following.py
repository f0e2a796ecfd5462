from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import UsageError
from millstream.pipelines.lake import following
from millstream.pipelines.lake.following import (
    OP_REMOVED,
    FollowedTable,
    TableForm,
    newest_rows,
    table_of_form,
)
from millstream.pipelines.sinks import parquet_target
from millstream.pipelines.sinks.repairing import KeyedTarget, RepairingSink, Row
from simulators.pipeline_world import World
from support.budget import budget
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import FalseOrigin, false_row

SCHEDULES = budget(25)
DELTA_SCHEDULES = budget(6)


class Death(Exception):
    """The process dies here."""


class FollowedWorld(World):
    """The sink is a followed table; the process dies before or after the table is replaced."""

    path: Path
    form: TableForm = "parquet"
    deaths = 0

    def make_target(self) -> KeyedTarget:
        return FollowedTable(self.path, self.form)

    def drop_tombstones(self, p: int, seqno: int) -> None:
        self.origin.durable[p] = seqno

    def apply(self, rows: list[Row]) -> bool:
        target = self.target
        assert isinstance(target, FollowedTable)
        death = self.rng.random()
        inner_commit = target.table.commit

        def dying(batch_id: int) -> None:
            if death > 0.1:
                inner_commit(batch_id)
            raise Death

        if death < 0.2:
            target.table.commit = dying  # type: ignore[method-assign]
        try:
            self.sink.apply(rows)
        except Death:
            FollowedWorld.deaths += 1
            self.target = self.make_target()
            self.sink = self.make_sink()
            return False
        return True

    def live(self, p: int) -> dict[str, bytes | None]:
        table = table_of_form(self.path / "table", self.form).table().to_pylist()
        found = {row["key"]: row["value"] for row in table if row["partition"] == p}
        if not list((self.path / "log").glob("pending-*")):
            logged = newest_rows(self.path)
            assert {key: row["value"] for (q, key), row in logged.items() if q == p} == found
        return found


def test_table_and_log_equal_the_source_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (parquet_target, following):
        monkeypatch.setattr(module, "sync_directory", lambda _: None)
    monkeypatch.setattr(parquet_target.os, "fsync", lambda _: None)
    for seed in range(SCHEDULES):
        FollowedWorld.path = tmp_path / str(seed)
        try:
            FollowedWorld(seed, repairs=True).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert FollowedWorld.deaths > SCHEDULES / 4


@pytest.mark.parametrize("seed", range(DELTA_SCHEDULES))
def test_a_delta_table_and_its_log_equal_the_source_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    pytest.importorskip("deltalake", reason="the extra delta is not installed")

    class DeltaWorld(FollowedWorld):
        path = tmp_path
        form: TableForm = "delta"

    monkeypatch.setattr(following, "sync_directory", lambda _: None)
    DeltaWorld(seed, repairs=True).run()


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_table_of_another_form_is_not_touched(tmp_path: Path, form: TableForm) -> None:
    pytest.importorskip("deltalake", reason="the extra delta is not installed")
    other: TableForm = "parquet" if form == "delta" else "delta"
    sink = RepairingSink(FollowedTable(tmp_path, form), FalseOrigin(FalseNode(1)))
    sink.apply([false_row(0, 1, 1, 1, 10, 1)])
    with pytest.raises(UsageError, match=f"--format {form}") as caught:
        FollowedTable(tmp_path, other)
    assert caught.value.code == "other_format"


def logged(path: Path) -> list[tuple[str, str]]:
    files = sorted((path / "log").glob("*.parquet"))
    rows = [row for file in files for row in following.pq.read_table(file).to_pylist()]
    return [(row["op"], row["key"]) for row in rows]


def test_the_log_has_the_rows_of_each_batch_and_what_was_removed(tmp_path: Path) -> None:
    node = FalseNode(1)
    node.write(0, 1, 10)
    target = FollowedTable(tmp_path)
    sink = RepairingSink(target, FalseOrigin(node))
    sink.apply([false_row(0, 1, 1, 1, 10, 1), false_row(0, 1, 2, 2, 20, 1)], 0)
    sink.apply([Row("rollback", 0, 2, 0, rev=2), false_row(0, 2, 1, 1, 10, 1)], 1)
    sink.apply([Row("sweep", 0, 2, 1, rev=2)], 2)
    assert logged(tmp_path) == [("put", "1"), ("put", "2"), ("put", "1"), (OP_REMOVED, "2")]
    assert list(newest_rows(tmp_path)) == [(0, "1")]
    assert newest_rows(tmp_path)[0, "1"]["batch"] == 1


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_rows_that_the_table_never_had_are_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: TableForm
) -> None:
    """Also where the owner of a Delta table makes a version of it meanwhile."""
    deltalake = pytest.importorskip("deltalake", reason="the extra delta is not installed")
    target = FollowedTable(tmp_path, form)
    sink = RepairingSink(target, FalseOrigin(FalseNode(1)))

    def dies(_: int) -> None:
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(target.table, "commit", dies)
        with pytest.raises(Death):
            sink.apply([false_row(0, 1, 1, 1, 10, 1)], 0)
    assert len(list((tmp_path / "log").iterdir())) == 1
    if form == "delta":
        table = deltalake.DeltaTable(str(tmp_path / "table"))
        table.alter.set_table_name("flights")
        assert table.version() == 1
    RepairingSink(FollowedTable(tmp_path, form), FalseOrigin(FalseNode(1))).apply(
        [false_row(0, 1, 1, 2, 20, 1)], 0
    )
    assert logged(tmp_path) == [("put", "2")]
