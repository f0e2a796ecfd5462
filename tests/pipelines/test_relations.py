"""Joins of two buckets, elements of arrays and unions in a real session.

The schedules of `RelationFrames` are many small histories in one frame: their documents differ in
the values of all fields that count, so they do not meet.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from millstream.errors import UsageError
from millstream.pipelines import ParquetTarget, Relation, changes
from millstream.pipelines.relation_frames import (
    Exploded,
    Joined,
    RelationFrames,
    Shape,
    United,
    replaced_versions,
)
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import TIMEOUT_S, BucketUnderTest
from support.pipelines.spark_rows import struct_of

HISTORIES = 60
Kept = dict[str, dict[str, Any]]


def pairs(left: Kept, right: Kept, how: str) -> Kept:
    """A join, in other words."""
    rows: Kept = {}
    for key, document in left.items():
        found = [
            (other, partner)
            for other, partner in right.items()
            if document["f"] is not None and partner["f"] == document["f"]
        ]
        for other, partner in found or ([(None, {"b": None})] if how == "left" else []):
            rows[json.dumps([key, other], separators=(",", ":"))] = document | partner
    return {key: {name: row[name] for name in "fab"} for key, row in rows.items()}


def both(one: Kept, other: Kept) -> Kept:
    """A union, in other words."""
    return {
        json.dumps([str(side), key], separators=(",", ":")): document
        for side, documents in enumerate((one, other))
        for key, document in documents.items()
    }


LEFT, RIGHT = struct_of("f string, a int"), struct_of("f string, b int")
CASES: dict[str, tuple[Shape, Sequence[Any], Callable[..., Kept]]] = {
    "inner": (Joined(["f"], "inner"), [LEFT, RIGHT], lambda *two: pairs(*two, "inner")),
    "left": (Joined(["f"], "left"), [LEFT, RIGHT], lambda *two: pairs(*two, "left")),
    "united": (United(), [LEFT, LEFT], both),
}


class Histories:
    """Three states of the tables of a case in many histories at once: a row of the target may be
    that of the first or the second, and is to be that of the third."""

    def __init__(self, schemas: Sequence[Any], seed: int) -> None:
        rng = random.Random(seed)
        numbers = ["b" if schema is RIGHT else "a" for schema in schemas]
        states: list[list[Kept]] = [[{} for _ in schemas] for _ in range(3)]
        for history in range(HISTORIES):
            fields = [f"{history}.{n}" for n in range(2)] + [None] * (history % 5 == 0)
            for side, number in enumerate(numbers):
                kept: Kept = {}
                for state in states:
                    for key in [f"{history}/{n}" for n in range(3)]:
                        if rng.random() < 0.3:
                            kept[key] = {"f": rng.choice(fields), number: rng.randrange(3)}
                        elif rng.random() < 0.2:
                            kept.pop(key, None)
                    state[side] |= kept
        self.states = states

    def wrong(self, spark: Any, frames: RelationFrames, of: Callable[..., Kept]) -> set[str]:
        """Return the keys of rows that are not those of the last state, nor told to be."""
        first, second, last = ([frame_of(spark, kept) for kept in state] for state in self.states)
        replaced = [
            replaced_versions(a, c).unionByName(replaced_versions(b, c))
            for a, b, c in zip(first, second, last, strict=True)
        ]
        told = dict(frames.compare([first, second], last, replaced))
        found = {key: json.loads(value) for key, value in told.items() if value is not None}
        one, two, wanted = (of(*state) for state in self.states)
        wrong = {key for key in found if found[key] != wanted.get(key)}
        for key in {*one, *two, *wanted} - found.keys():
            rows = [state.get(key) for state in (one, two, wanted)]
            if rows[2] is None and told.get(key, "") is None:
                continue
            if rows != [rows[2]] * 3:
                wrong.add(key)
        return wrong


def frame_of(spark: Any, kept: Kept) -> Any:
    rows = [(key, json.dumps(document).encode()) for key, document in kept.items()]
    return spark.createDataFrame(rows, "key string, value binary").coalesce(1)


@pytest.mark.parametrize("case", CASES)
def test_changed_rows_are_those_that_differ_in_random_histories(spark: Any, case: str) -> None:
    shape, schemas, of = CASES[case]
    histories = Histories(schemas, seed=7)
    assert histories.wrong(spark, RelationFrames(spark, schemas, shape), of) == set()


class ForgetsOldValue(Joined):
    """The value that a right document had is not looked for."""

    def restrict(self, tables: Any, changed: Any) -> Any:
        left, right = tables
        now = [changed[0], changed[1].join(right.select("_id", "f"), ["_id", "f"], "leftsemi")]
        return super().restrict([left, right], now)


class LeftOnly(Joined):
    """A change on the right reaches nothing."""

    def restrict(self, tables: Any, changed: Any) -> Any:
        return super().restrict(tables, [changed[0], changed[1].limit(0)])


class RightOnly(Joined):
    """A change on the left reaches nothing."""

    def restrict(self, tables: Any, changed: Any) -> Any:
        return super().restrict(tables, [changed[0].limit(0), changed[1]])


class DoesNotRetract(RelationFrames):
    """Rows that are gone are left alone."""

    def _differing(self, versions: Any, states: int) -> Any:
        return super()._differing(versions, states).where("value is not null")


class OneState(RelationFrames):
    """What an interrupted batch may have written is not asked for."""

    def compare(self, before: Any, now: Any, replaced: Any) -> Any:
        return super().compare(before[:1], now, replaced)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "shape", "frames"),
    [
        ("left", ForgetsOldValue(["f"], "left"), RelationFrames),
        ("left", LeftOnly(["f"], "left"), RelationFrames),
        ("left", RightOnly(["f"], "left"), RelationFrames),
        ("inner", Joined(["f"], "inner"), DoesNotRetract),
        ("inner", Joined(["f"], "inner"), OneState),
    ],
)
def test_mistakes_are_found(
    spark: Any, case: str, shape: Shape, frames: type[RelationFrames]
) -> None:
    _, schemas, of = CASES[case]
    assert Histories(schemas, seed=7).wrong(spark, frames(spark, schemas, shape), of)


def test_a_document_has_a_row_for_each_element_under_its_key_and_part(spark: Any) -> None:
    lines: Any = StructType.fromDDL("city string, lines array<struct<sku: string, n: int>>")

    def told(part: str, before: Kept, now: Kept) -> dict[str, Any]:
        frames = RelationFrames(spark, [lines], Exploded("lines", part))
        old, new = frame_of(spark, before), frame_of(spark, now)
        found = frames.compare([[old]], [new], [replaced_versions(old, new)])
        return {key: None if value is None else json.loads(value) for key, value in found}

    def order(city: str, **skus: int) -> dict[str, Any]:
        return {"city": city, "lines": [{"sku": sku, "n": n} for sku, n in skus.items()]}

    before = {"o1": order("Wien", a=1, b=2), "o2": order("Graz", a=1), "o3": order("Wels", c=1)}
    now = {"o1": order("Wien", b=2, d=4), "o2": order("Graz", a=1), "o4": order("Wels")}
    assert told("lines.sku", before, now) == {
        '["o1","a"]': None,
        '["o1","d"]': {"city": "Wien", "lines": {"sku": "d", "n": 4}},
        '["o3","c"]': None,
    }
    assert sorted(told("", before, now)) == ['["o1","0"]', '["o1","1"]', '["o3","0"]']
    long = told("", {}, {"k" * 250: order("Wien", a=1)})
    assert [len(key) for key in long] == [46 + 1 + 64]
    with pytest.raises(UsageError, match="several rows have this _id"):
        told("city", {}, before)


@pytest.mark.slow
def test_a_join_is_that_of_the_documents_after_a_crash_it_was_ahead_of(
    spark: Any, bucket: BucketUnderTest, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4", "--flush-interval", "600000")
    left, right = bucket, BucketUnderTest(node.ready["kv"], "b")
    rng, keys = random.Random(5), [f"k{n}" for n in range(40)]
    orders = changes(spark, "f string, a int", **left.options(numPartitions=2))
    customers = changes(spark, "f string, b int", **right.options(numPartitions=2))
    rows: Relation = orders.filter("a < 8").join(customers, "f", "left", state=tmp_path / "state")
    table = ParquetTarget(tmp_path / "joined")

    def write(side: BucketUnderTest, number: str, count: int) -> None:
        side.write(
            {
                key: None
                if rng.random() < 0.2
                else json.dumps({"f": f"c{rng.randrange(8)}", number: rng.randrange(10)}).encode()
                for key in rng.sample(keys, count)
            }
        )

    def kept(side: BucketUnderTest) -> Kept:
        with side.client() as client:
            return {key: json.loads(found.data) for key, found in client.get_many(keys).items()}

    def check() -> None:
        query = rows.to(table, tmp_path / "checkpoint", availableNow=True)
        assert query.awaitTermination(TIMEOUT_S), "the query does not end"
        accepted = {key: found for key, found in kept(left).items() if found["a"] < 8}
        wanted = pairs(accepted, kept(right), "left")
        found = {row._id: row.asDict() for row in rows.read(table).collect()}
        assert found == {key: {"_id": key, **row} for key, row in wanted.items()}

    write(left, "a", 30)
    write(right, "b", 30)
    with right.client() as client:
        for p in range(4):
            client.upsert(f"flush{p}", b"{}", durability="persisted")
    check()
    write(right, "b", 20)  # not flushed: what the join has of it is lost with the node
    check()
    node.kill()
    node.start()
    write(left, "a", 5)
    check()
    write(right, "b", 3)
    check()


def test_impossible_relations_are_refused_at_once(spark: Any, tmp_path: Path) -> None:
    one = changes(spark, "f string, a int", bucket="b")
    other = changes(spark, "f string, b int", bucket="c")
    for refused, reason in (
        (lambda: one.join(other, "f"), "needs the names of columns"),  # type: ignore[call-overload]
        (lambda: one.join(other, "f", "full", state=tmp_path), "inner, left can"),
        (lambda: one.join(other, "a", state=tmp_path), "f, b: name some of them"),
        (lambda: one.join(one, "f", state=tmp_path), "both sides have the columns a"),
        (lambda: one.union(other, state=tmp_path), "are not the same"),
        (lambda: one.explode("lines", state=tmp_path), "not lines"),
        (
            lambda: one.join(other, "f", state=tmp_path).map(lambda rows: rows.select("a")),
            "column _id has to be among them",
        ),
    ):
        with pytest.raises(UsageError, match=reason):
            refused()
