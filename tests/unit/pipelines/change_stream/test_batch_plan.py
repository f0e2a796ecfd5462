from __future__ import annotations

import pytest

from millstream.errors import RollbackRequiredError, UnavailableError, UsageError
from millstream.pipelines.change_stream import control
from millstream.pipelines.change_stream.batch_plan import plan_batch
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry
from millstream.pipelines.change_stream.options import Edge, SourceOptions
from millstream.pipelines.change_stream.ranges import RangeRead
from support.pipelines.node_double import FalseClient, FalseNode


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FalseClient:
    node = FalseNode(2)
    for p in (0, 1):
        for key in range(5):
            node.write(p, key, key)
    client = FalseClient(node)
    monkeypatch.setattr(control, "open_client", lambda _: client)
    return client


def planned(
    starting: Edge = "earliest",
    ending: Edge = "latest",
    reconnect_s: float = 600,
) -> list[RangeRead]:
    options = SourceOptions(
        hosts="h", bucket="b", starting_offsets=starting, ending_offsets=ending,
        reconnect_s=reconnect_s,
    )  # fmt: skip
    return plan_batch(options)


def closed(client: FalseClient, seqno: int) -> Offset:
    entries = {
        at.partition_id: OffsetEntry(at.uuid, seqno, seqno, seqno, at.branch)
        for at in client.positions()
    }
    return Offset("b", "b0b0", entries)


def test_every_partition_is_read_to_its_present_end_under_a_lease(client: FalseClient) -> None:
    reads = planned()
    assert [(read.begin, read.end, read.snap_end) for read in reads] == [(0, 5, 0)] * 2
    assert all(read.lease_id in client._node.partitions[0].leases for read in reads)
    assert client.is_closed


@pytest.mark.usefixtures("client")
def test_from_latest_there_is_nothing() -> None:
    assert planned("latest") == []


def test_a_range_between_two_offsets(client: FalseClient) -> None:
    reads = planned(closed(client, 2), closed(client, 4))
    assert [(read.begin, read.end) for read in reads] == [(2, 4)] * 2
    assert {lease[0] for lease in client._node.partitions[0].leases.values()} == {4}


def test_an_end_beyond_the_present_is_the_present(client: FalseClient) -> None:
    assert [read.end for read in planned(ending=closed(client, 9))] == [5, 5]


def test_a_start_inside_a_snapshot_goes_back_to_its_beginning(client: FalseClient) -> None:
    offset = closed(client, 2)
    inside = {p: e._replace(seqno=3, snap_end=5) for p, e in offset.entries.items()}
    assert [read.begin for read in planned(offset._replace(entries=inside))] == [2, 2]


def test_partitions_that_an_end_does_not_name_are_not_read(client: FalseClient) -> None:
    end = closed(client, 4)
    only = end._replace(entries={1: end.entries[1]})
    assert [read.partition_id for read in planned(ending=only)] == [1]
    assert planned(ending=end._replace(entries={})) == []


def test_a_start_in_a_lost_history_is_an_error(client: FalseClient) -> None:
    offset = closed(client, 4)
    client._node.partitions[1].fail_over(3)
    with pytest.raises(RollbackRequiredError, match="partition 1 of bucket 'b'") as caught:
        planned(offset)
    assert (caught.value.partition_id, caught.value.seqno) == (1, 3)
    assert client.is_closed


def test_partitions_that_cannot_be_held_are_an_error_and_not_left_out(
    client: FalseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = client.open_lease
    monkeypatch.setattr(
        client, "open_lease", lambda wanted: {p: h for p, h in opened(wanted).items() if p != 1}
    )
    with pytest.raises(UnavailableError, match=r"partitions \[1\]"):
        planned(reconnect_s=0)
    client._node.partitions[1].changes.clear()
    assert [read.partition_id for read in planned()] == [0]


def test_offsets_of_another_bucket_are_refused(client: FalseClient) -> None:
    other = closed(client, 4)._replace(bucket_uuid="cafe")
    for starting, ending in ((other, "latest"), ("earliest", other)):
        with pytest.raises(UsageError, match="the offset is one of bucket"):
            planned(starting, ending)  # type: ignore[arg-type]
