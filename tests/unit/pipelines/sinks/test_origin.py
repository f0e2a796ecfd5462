from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.client.extensions import Versioned
from millstream.errors import UnavailableError
from millstream.pipelines.change_stream import control, reading
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.sinks.origin import BucketOrigin
from millstream.pipelines.sinks.repairing import OriginPosition, Row
from support.pipelines.node_double import FalseClient, FalseNode, FalseRanges


class Client(FalseClient):
    """With versions, as the node has them."""

    def get_versioned_many(self, keys: Any) -> dict[bytes, Versioned]:
        self._called("get_versioned_many")
        newest = self._node.partitions[0].newest()
        return {
            key: Versioned(
                b"" if value is None else b"%d" % value, 2**63 + 5000, 7, 1, 9, seqno, 3, 4,
                value is None, 1,
            )
            for key in keys
            if key.isdigit() and int(key) in newest
            for seqno, value in [newest[int(key)]]
        }  # fmt: skip


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FalseNode:
    node = FalseNode(2)
    for key, value in ((1, 1), (2, 2), (1, None)):
        node.write(0, key, value)
    monkeypatch.setattr(control, "open_client", lambda _: Client(node))

    def stream(_: object, ranges: Any) -> Iterator[bytes]:
        return FalseRanges(node).stream(ranges)

    monkeypatch.setattr(reading.NodeRanges, "stream", stream)
    return node


@pytest.fixture
def source(node: FalseNode) -> BucketOrigin:
    return BucketOrigin(SourceOptions(hosts="h", bucket="b"))


def test_a_source_that_restarts_is_asked_again(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(node)
    refused = [UnavailableError("away"), UnavailableError("away")]

    def open_client(_: SourceOptions) -> Client:
        if refused:
            raise refused.pop()
        return client

    monkeypatch.setattr(control, "open_client", open_client)
    source = BucketOrigin(SourceOptions(hosts="h", bucket="b"))
    client.failures = [UnavailableError("cut"), UnavailableError("cut")]
    assert source.positions([0]) == {0: OriginPosition(1, 3, 0)}
    client.failures = [UnavailableError("cut")]
    assert sorted(source.newest(0, ["1", "2"])) == ["1", "2"]
    client.failures = [UnavailableError("cut")]
    assert len([row for piece in source.everything(0) for row in piece]) == 2
    client.reconnect_s = 0.0
    client.failures = [UnavailableError("gone")]
    with pytest.raises(UnavailableError, match="gone"):
        source.positions([0])


def test_positions(node: FalseNode, source: BucketOrigin) -> None:
    node.partitions[0].purge(2)
    assert source.partition_count == 2
    assert source.positions([0]) == {0: OriginPosition(1, 3, 2)}


def test_the_newest_documents_and_tombstones(source: BucketOrigin) -> None:
    found = source.newest(0, ["1", "2", "\\xff00"])
    cas = -(2**63) + 5000
    assert found["1"] == Row("delete", 0, 9, 3, "1", cas, 3, 4, 7, 1, None, found["1"].ts)
    assert found["2"].value == b"2"
    assert found["2"].ts == (2**63 + 5000) // 1000
    assert sorted(found) == ["1", "2"]


def test_everything_of_a_partition(node: FalseNode, source: BucketOrigin) -> None:
    rows = [row for piece in source.everything(0) for row in piece]
    assert [(row.op, row.key, row.version) for row in rows] == [
        ("put", "2", (1, 2)), ("delete", "1", (1, 3)),
    ]  # fmt: skip
    assert not node.partitions[0].leases
    assert list(source.everything(1)) == []


def test_a_partition_without_a_lease(
    source: BucketOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "open_lease", lambda *_: {})
    with pytest.raises(UnavailableError, match="cannot be held"):
        list(source.everything(0))
    source.close()
