from __future__ import annotations

import pytest

from millstream.errors import RemoteProtocolError
from millstream.kv.core.copies.record_exchange import (
    Exchange,
    exchange_from_json,
    exchange_request,
    exchange_to_json,
)
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.wire.mcbp import Opcode, cut_packets

RECORD = DataRecord(
    MapKey(2, 7), "a", 9, (("a", None), ("b", "a")), ("c",), since=MapKey(2, 6)
)  # fmt: skip


@pytest.mark.parametrize(
    "exchange", [Exchange({}), Exchange({3: RECORD}), Exchange({0: RECORD}, {0: 12})]
)
def test_it_comes_back_as_it_was(exchange: Exchange) -> None:
    assert exchange_from_json(exchange_to_json(exchange)) == exchange


def test_the_bytes_are_those_of_the_reference() -> None:
    (packet,), rest = cut_packets(exchange_request(Exchange({3: RECORD}, {3: 12}), 7), 1 << 20)
    assert rest == b""
    assert (packet.opcode, packet.opaque) == (Opcode.EXCHANGE_RECORDS, 7)
    assert packet.value == (
        b'{"records":{"3":{"at":[2,7],"active":"a","branch":9,"rows":[["a",null],["b","a"]],'
        b'"building":["c"],"since":[2,6]}},"branches":{"3":12}}'
    )


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"records":{"x":{}}}'])
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        exchange_from_json(content)
    assert caught.value.code == "bad_records"
