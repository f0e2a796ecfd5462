from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark_api

from millstream.client.columns import Columns, cut_columns
from millstream.model.partitions import partition_of
from millstream.pipelines.change_stream.pushdown import Pushed, push
from millstream.wire.frames import mutation

KEYS = (b"a", b"ab", b"b", b"\xab", b"\\x")
CHANGES = [(p, n, KEYS[n % 5]) for p in range(3) for n in range(1, 11)]


def columns() -> Columns:
    found = Columns()
    cut_columns(b"".join(mutation(p, k, b"", n, 1, 1, 0, 0, 0) for p, n, k in CHANGES), found)
    return found


def chosen(pushed: Pushed) -> set[tuple[int, int, str]]:
    rows = columns()
    mask = pushed.mask(rows)
    kept = [True] * len(rows) if mask is None else mask.to_pylist()
    triples = zip(rows.partition, rows.seqno, rows.key, kept, strict=True)
    return {(p, n, key) for p, n, key, is_kept in triples if is_kept}


PARTITION, SEQNO, KEY = ("partition",), ("seqno",), ("key",)
TEXTS = st.sampled_from(["a", "ab", "b", "\\xab", "\\x5c78", "zz", ""])
FILTERS = st.one_of(
    st.builds(spark_api.EqualTo, st.just(PARTITION), st.integers(0, 3)),
    st.builds(spark_api.In, st.just(PARTITION), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    *[
        st.builds(kind, st.just(SEQNO), st.integers(-1, 11))
        for kind in (
            spark_api.EqualTo, spark_api.GreaterThan, spark_api.GreaterThanOrEqual,
            spark_api.LessThan, spark_api.LessThanOrEqual,
        )
    ],
    st.builds(spark_api.EqualTo, st.just(KEY), TEXTS),
    st.builds(spark_api.In, st.just(KEY), st.lists(TEXTS, min_size=1).map(tuple)),
    st.builds(spark_api.StringStartsWith, st.just(KEY), TEXTS),
    st.builds(spark_api.IsNotNull, st.sampled_from([PARTITION, SEQNO, KEY])),
)  # fmt: skip


def holds(one: spark_api.Filter, partition: int, seqno: int, key: str) -> bool:
    held = {"partition": partition, "seqno": seqno, "key": key}[one.attribute[0]]  # type: ignore[attr-defined]
    match one:
        case spark_api.EqualTo():
            return held == one.value
        case spark_api.In():
            return held in one.value
        case spark_api.GreaterThan():
            return held > one.value
        case spark_api.GreaterThanOrEqual():
            return held >= one.value
        case spark_api.LessThan():
            return held < one.value
        case spark_api.LessThanOrEqual():
            return held <= one.value
        case spark_api.StringStartsWith():
            return str(held).startswith(one.value)
        case _:
            return True


@given(filters=st.lists(FILTERS, max_size=4))
def test_filters_that_are_taken_choose_exactly_what_they_say(
    filters: list[spark_api.Filter],
) -> None:
    pushed, left = push(filters)
    assert left == []
    every = chosen(Pushed())
    assert len(every) == len(CHANGES)
    assert chosen(pushed) == {row for row in every if all(holds(one, *row) for one in filters)}


@given(filters=st.lists(FILTERS, max_size=4), keys=st.lists(st.sampled_from(KEYS), min_size=1))
def test_a_partition_that_may_have_a_row_is_read(
    filters: list[spark_api.Filter], keys: list[bytes]
) -> None:
    pushed, _ = push(filters)
    rows = Columns()
    places = [partition_of(key, 3) for key in keys]
    frames = [mutation(p, k, b"", 5, 1, 1, 0, 0, 0) for p, k in zip(places, keys, strict=True)]
    cut_columns(b"".join(frames), rows)
    mask = pushed.mask(rows)
    kept = [True] * len(rows) if mask is None else mask.to_pylist()
    for place, is_kept in zip(places, kept, strict=True):
        assert pushed.reads_partition(place, 3) or not is_kept


@pytest.mark.parametrize(
    "one",
    [
        spark_api.EqualTo(("op",), "put"),
        spark_api.EqualTo(("partition",), None),
        spark_api.EqualTo(("partition", "x"), 1),
        spark_api.In(("key",), ()),
        spark_api.GreaterThan(("partition",), 1),
        spark_api.GreaterThan(("key",), "a"),
        spark_api.Not(spark_api.EqualTo(("seqno",), 1)),
        spark_api.EqualNullSafe(("seqno",), 1),
        spark_api.IsNotNull(("value",)),
        spark_api.StringEndsWith(("key",), "a"),
        spark_api.StringStartsWith(("op",), "a"),
    ],
)
def test_other_filters_are_left_to_spark(one: spark_api.Filter) -> None:
    assert push([one]) == (Pushed(), [one])


def test_a_text_that_no_key_has_is_in_no_partition() -> None:
    pushed, _ = push([spark_api.EqualTo(("key",), "\\xzz")])
    assert not any(pushed.reads_partition(p, 4) for p in range(4))
    both, _ = push([spark_api.EqualTo(("partition",), 9), spark_api.EqualTo(("key",), "a")])
    assert not any(both.reads_partition(p, 4) for p in range(4))
