from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from pyspark.sql import types as t

from millstream.client.columns import Columns, cut_columns
from millstream.client.extensions import DURABLE_MARK, LeaseHold
from millstream.errors import RollbackRequiredError, StreamError, UnavailableError
from millstream.pipelines.change_stream import control, reading
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.ranges import RangeRead
from millstream.pipelines.change_stream.schema import RowForm, row_form
from millstream.wire.frames import deletion, mutation
from support.pipelines.node_double import FalseClient, FalseNode, FalseRanges

OPTIONS = SourceOptions(hosts="h", bucket="b")
ENDING = SourceOptions(hosts="h", bucket="b", ending_offsets="earliest")


@pytest.fixture
def form() -> RowForm:
    names = ("op", "key", "value")
    kinds = (t.StringType(), t.StringType(), t.BinaryType())
    return row_form(t.StructType([t.StructField(n, k) for n, k in zip(names, kinds, strict=True)]))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FalseNode:
    node = FalseNode(2)
    for p in (0, 1):
        for key in range(5):
            node.write(p, key, key)
    ranges = FalseRanges(node)
    monkeypatch.setattr(control, "open_client", lambda _: FalseClient(node))
    monkeypatch.setattr(
        reading.NodeRanges, "stream", lambda _, wanted: ranges.stream(wanted), raising=True
    )
    return node


def pinned(node: FalseNode) -> list[RangeRead]:
    return [
        RangeRead(p, 0, hold.at, hold.uuid, 0, hold.at, hold.branch, lease_id=hold.lease_id)
        for p, hold in node.open_lease([0, 1]).items()
    ]


def rows(batches: Iterator[object]) -> list[tuple[str, str]]:
    return [
        (row["op"], row["key"])
        for batch in batches
        for row in batch.to_pylist()  # type: ignore[attr-defined]
    ]


def test_marks_come_first(node: FalseNode, form: RowForm) -> None:
    reads = pinned(node)
    reads[0] = reads[0]._replace(sweep_seqno=5)
    reads[1] = reads[1]._replace(rollback_to=0)
    found = rows(reading.committed_batches(OPTIONS, form, reads))
    assert found[:2] == [("rollback", None), ("sweep", None)]
    assert len(found) == 12


def test_a_planned_read_is_exact_though_writers_go_on(node: FalseNode, form: RowForm) -> None:
    reads = pinned(node)
    node.write(0, 3, None)
    node.write(1, 9, 9)
    found = rows(reading.pinned_batches(OPTIONS, form, reads))
    assert found == [("put", str(key)) for key in range(5)] * 2


def test_a_lease_lost_before_the_read_is_replaced_by_the_present(
    node: FalseNode, form: RowForm
) -> None:
    reads = pinned(node)
    node.partitions[0].leases.clear()
    node.write(0, 3, None)
    found = rows(reading.pinned_batches(OPTIONS, form, reads))
    assert ("delete", "3") in found
    assert len(found) == 10


def test_a_lease_lost_of_an_end_that_was_asked_for_is_an_error(
    node: FalseNode, form: RowForm
) -> None:
    reads = pinned(node)
    node.partitions[1].leases.clear()
    with pytest.raises(StreamError, match="snapshot of partition 1") as caught:
        rows(reading.pinned_batches(ENDING, form, reads))
    assert caught.value.code == "lease_lost"


def test_leases_are_renewed_while_a_read_lasts(
    node: FalseNode, form: RowForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RENEW_EVERY_S", -1.0)
    renewed: list[int] = []
    renew = node.renew_lease

    def counted(lease_id: int, partition_ids: Sequence[int]) -> object:
        renewed.append(lease_id)
        return renew(lease_id, partition_ids)

    monkeypatch.setattr(node, "renew_lease", counted)
    reads = pinned(node)
    rows(reading.pinned_batches(OPTIONS, form, reads))
    assert len(renewed) > 2


@pytest.mark.usefixtures("node")
def test_no_ranges_are_no_batches(form: RowForm) -> None:
    assert rows(reading.pinned_batches(OPTIONS, form, [])) == []
    assert rows(reading.committed_batches(OPTIONS, form, [])) == []


def test_batches_are_bounded_by_rows_and_bytes(form: RowForm) -> None:
    def chunks() -> Iterator[bytes]:
        for n in range(4):
            yield b"".join(mutation(0, b"%d" % k, b"", k, 1, 1, 0, 0, 0) for k in range(6_000))
            yield mutation(0, b"big%d" % n, bytes(5 * 1024 * 1024), 1, 1, 1, 0, 0, 0)

    sizes = [
        (batch.num_rows, batch.nbytes)
        for batch in reading._batches(OPTIONS, form, {0: 1}, chunks())
    ]
    assert sum(count for count, _ in sizes) == 24_004
    assert max(count for count, _ in sizes) <= 12_001
    assert max(size for _, size in sizes) < 6 * 1024 * 1024


def test_questions_beside_the_stream_outlive_a_restart(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FalseClient(node)
    refused = [UnavailableError("away"), UnavailableError("away")]

    def open_client(_: SourceOptions) -> FalseClient:
        if refused:
            raise refused.pop()
        return client

    monkeypatch.setattr(control, "open_client", open_client)
    source = reading.NodeRanges(OPTIONS, with_values=True)
    client.failures = [UnavailableError("cut")]
    assert sorted(source.open_lease([0, 1])) == [0, 1]
    assert client.calls == ["open_lease", "refresh_map", "open_lease"]


def test_a_source_that_asked_nothing_has_nothing_to_close() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        source = reading.NodeRanges(SourceOptions(hosts=address, bucket="b"), with_values=True)
        assert list(source.stream([])) == []
        source.close()


def test_questions_beside_the_stream_share_one_connection(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[FalseClient] = []

    def open_client(_: SourceOptions) -> FalseClient:
        made.append(FalseClient(node))
        return made[-1]

    monkeypatch.setattr(control, "open_client", open_client)
    source = reading.NodeRanges(OPTIONS, with_values=True)
    lease_id = pinned(node)[0].lease_id
    assert lease_id is not None
    source.release_lease(lease_id, 0)
    assert lease_id not in node.partitions[0].leases
    assert source.failover_log(1) == (node.partitions[1].failover_log, 5)
    source.close()
    assert [client.is_closed for client in made] == [True]


def test_a_range_without_a_lease_gets_one(node: FalseNode, form: RowForm) -> None:
    read = pinned(node)[0]
    found = rows(reading.pinned_batches(OPTIONS, form, [read._replace(lease_id=None)]))
    assert len(found) == 5


class Promoted:
    """Has a new history of both partitions, and learns by and by what of it is durable."""

    def __init__(self, node: FalseNode, marks: list[int | None]) -> None:
        self.node, self.marks = node, marks
        self.held = 0
        for part in node.partitions.values():
            part.keep_copy()
            part.promote_copy(part.high_seqno)

    def open_lease(self, wanted: Mapping[int, int | None]) -> dict[int, LeaseHold]:
        assert set(wanted.values()) == {DURABLE_MARK}
        mark = self.marks.pop(0) if len(self.marks) > 1 else self.marks[0]
        if mark is None:
            return {}
        self.held += len(wanted)
        found = self.node.open_lease(list(wanted))
        for p, hold in found.items():
            self.node.partitions[p].leases[hold.lease_id][0] = mark
        return {p: hold._replace(at=mark) for p, hold in found.items()}


def promoted(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch, *marks: int | None
) -> tuple[Promoted, list[RangeRead]]:
    reads = pinned(node)
    made = Promoted(node, list(marks))
    client = FalseClient(node)
    monkeypatch.setattr(client, "open_lease", made.open_lease)
    monkeypatch.setattr(control, "open_client", lambda _: client)
    return made, reads


DURABLE = SourceOptions(hosts="h", bucket="b", is_durable_only=True)


def test_a_read_of_durable_changes_is_not_short_after_a_promotion(
    node: FalseNode, form: RowForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reads = promoted(node, monkeypatch, None, 2, 2, 5)
    assert len(rows(reading.pinned_batches(DURABLE, form, reads))) == 10
    leases = [lease for part in node.partitions.values() for lease in part.leases]
    assert (made.held, len(leases)) == (6, 2)  # what was too short is given back


def test_a_read_of_durable_changes_fails_if_they_stay_unknown(
    node: FalseNode, form: RowForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reads = promoted(node, monkeypatch, 2)
    with pytest.raises(UnavailableError, match=r"partitions \[0, 1\] of bucket 'b'") as failed:
        rows(reading.pinned_batches(replace(DURABLE, reconnect_s=0), form, reads))
    assert failed.value.code == "durable_unknown"


def test_a_read_of_durable_changes_takes_what_a_new_history_still_has(
    node: FalseNode, form: RowForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reads = promoted(node, monkeypatch, 3)
    for part in node.partitions.values():
        part.changes = part.changes[:3]
    assert len(rows(reading.pinned_batches(DURABLE, form, reads))) == 6


def test_a_read_that_begins_beyond_what_there_still_is_must_roll_back(
    node: FalseNode, form: RowForm
) -> None:
    log = node.partitions[0].failover_log
    reads = [read._replace(begin=5, uuid=log[0].uuid) for read in pinned(node)[:1]]
    node.partitions[0].fail_over(2)
    with pytest.raises(RollbackRequiredError) as refused:
        rows(reading.pinned_batches(OPTIONS, form, reads))
    assert refused.value.seqno == 2


# -- which rows a read wants, by its options

KEYS = ["a", "ab", "b", "\\xab", "\\x5c78"]


def columns(*, has_deletions: bool = True) -> Columns:
    frames = [
        mutation(0, key, b"", n, 1, 1, 0, 0, 0)
        for n, key in enumerate((b"a", b"ab", b"b", b"\xab", b"\\x"), 1)
    ]
    found = Columns()
    cut_columns(
        b"".join(frames) + (deletion(0, b"ab", 6, 1, 6, 0) if has_deletions else b""), found
    )
    return found


@pytest.mark.parametrize(
    ("prefix", "is_live_only", "wanted"),
    [
        ("", True, KEYS),
        ("a", False, ["a", "ab", "ab"]),
        ("ab", True, ["ab"]),
        ("\\x", True, ["\\xab", "\\x5c78"]),
        ("z", True, []),
    ],
)
def test_rows_are_chosen_by_prefix_and_kind(
    prefix: str, is_live_only: bool, wanted: list[str]
) -> None:
    rows = columns()
    mask = reading._rows_wanted(rows, prefix, is_live_only=is_live_only)
    assert mask is not None
    kept = zip(rows.key, mask.to_pylist(), strict=True)
    assert [key for key, is_kept in kept if is_kept] == wanted


def test_no_mask_is_made_where_all_rows_are_wanted() -> None:
    assert reading._rows_wanted(columns(), "", is_live_only=False) is None
    assert reading._rows_wanted(columns(has_deletions=False), "", is_live_only=True) is None
