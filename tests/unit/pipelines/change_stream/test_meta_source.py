from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle as pickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from millstream.errors import UsageError
from millstream.pipelines.change_stream import meta_source
from millstream.pipelines.change_stream.meta_source import MetaDataSource
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry, offset_to_json
from millstream.wire.cluster_map import NodeAddress
from pyspark_millstream_meta import DefaultSource
from support.pipelines.node_double import FalseClient, FalseNode

KINDS = {"string": StringType(), "int": IntegerType(), "bigint": LongType()}


class Client(FalseClient):
    """A false client that knows who has what."""

    @property
    def cluster_map(self) -> Any:
        nodes = (NodeAddress("a", 1), NodeAddress("b", 2))
        return SimpleNamespace(nodes=nodes, owners=(1, 0), bucket_uuid=self.bucket_uuid)


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> FalseNode:
    node = FalseNode(2)
    for key in range(5):
        node.write(1, key, key)
    monkeypatch.setattr(meta_source, "open_again", lambda _: Client(node))
    return node


def offset(bucket_uuid: str = "b0b0") -> str:
    entries = {0: OffsetEntry(1, 9, 9, 9, 1), 1: OffsetEntry(1, 3, 3, 3, 1)}
    return json.dumps(offset_to_json(Offset("b", bucket_uuid, entries)))


def rows(*names: str, **given: str) -> list[dict[str, Any]]:
    source = MetaDataSource(CaseInsensitiveDict({"bucket": "b", **given}))
    kinds = dict(column.split() for column in source.schema().split(", "))
    wanted = names or tuple(kinds)
    schema = StructType([StructField(name, KINDS[kinds[name]]) for name in wanted])
    reader = source.reader(schema)
    sent = pickle.loads(pickle.dumps(reader))
    (part,) = reader.partitions()
    (batch,) = sent.read(part)
    assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_a_row_says_where_a_partition_is_and_stands(node: FalseNode) -> None:
    assert DefaultSource is MetaDataSource
    assert DefaultSource.name() == "millstream.meta"
    found = rows()
    newest = node.partitions[1].failover_log[0]
    assert found[1] == {
        "partition": 1, "node": "a:1", "state": "active", "uuid": f"{newest.uuid:012x}",
        "branch": newest.branch, "high_seqno": 5, "persisted_seqno": 5, "durable_seqno": 5,
        "purge_seqno": 0, "position": None, "lag": None,
    }  # fmt: skip
    assert [row["node"] for row in found] == ["b:2", "a:1"]


def test_lag_is_what_an_offset_has_not_read() -> None:
    assert rows("partition", "position", "lag", offset=offset()) == [
        {"partition": 0, "position": 9, "lag": 0},
        {"partition": 1, "position": 3, "lag": 2},
    ]


@pytest.mark.parametrize(
    ("text", "code"), [("x", "bad_option"), ("{}", "bad_offset"), (offset("ff"), "other_bucket")]
)
def test_an_offset_that_cannot_be_compared_with(text: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        rows(offset=text)
    assert caught.value.code == code
