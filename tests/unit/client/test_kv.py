from struct import pack, unpack
from typing import Any

import pytest

import millstream
from millstream.client.kv import connect
from millstream.errors import ConditionError, RoutingError, StreamError, UsageError
from millstream.wire.cluster_map import NodeAddress
from millstream.wire.mcbp import Datatype, Opcode, Packet, Status, parse_frame_infos, response


def refuse(node: Any, opcode: int, status: int) -> None:
    node.handlers[opcode] = lambda packet: response(opcode, status, packet.opaque)


def test_connect_is_public(node: Any) -> None:
    with millstream.connect(f"127.0.0.1:1,{node.address}", bucket="flights") as client:
        assert isinstance(client, millstream.Client)
        assert (client.bucket, client.partition_count) == ("flights", 8)


def test_documents(node: Any, client: Any) -> None:
    stored = client.upsert("k", {"a": 1})
    assert stored.partition_id == client.partition_of("k")
    assert (stored.uuid, stored.seqno > 0, stored.cas > 0) == (0xABCDEF012345, True, True)
    found = client.get("k")
    assert (found.value, found.is_json, found.datatype) == ({"a": 1}, True, Datatype.JSON)
    client.upsert(b"\xff", b"raw")
    assert client.get(b"\xff").value == b"raw"
    client.remove("k")
    assert client.get("k") is None
    assert client.get_many(["k", b"\xff"]).keys() == {b"\xff"}


def test_json_bit_only_if_granted(node: Any) -> None:
    node.features = []
    with connect(node.address, bucket="flights") as client:
        client.upsert("k", {"a": 1})
        client.apply_many([("l", {"a": 1})])
    assert [found[2] for found in node.documents.values()] == [0, 0]


def test_a_write_asks_nobody_but_the_owner(client: Any) -> None:
    gone = NodeAddress("127.0.0.1", 1)
    router = client._router
    router.map = router.map._replace(nodes=(gone, *router.map.nodes), owners=(1,) * 8)
    client.upsert("a", {"n": 1})
    assert client.upsert_many({"b": {"n": 2}}).done == 1
    assert client.get("b").value == {"n": 2}


def test_conditions(node: Any, client: Any) -> None:
    refuse(node, Opcode.ADD, Status.KEY_EEXISTS)
    refuse(node, Opcode.REPLACE, Status.KEY_EEXISTS)
    with pytest.raises(ConditionError) as failed:
        client.insert("k", 1)
    assert failed.value.code == "key_exists"
    with pytest.raises(ConditionError, match="write 'k' in bucket 'flights'") as failed:
        client.replace("k", 1, cas=5)
    assert failed.value.code == "cas_mismatch"
    assert node.requests_of(Opcode.REPLACE)[0].cas == 5
    with pytest.raises(ConditionError) as failed:
        client.remove("gone")
    assert failed.value.code == "not_found"


def test_durability_and_expiry_travel(node: Any, client: Any) -> None:
    client.upsert("k", 1, expiry=60, durability="persisted", preserve_expiry=True, flags=9)
    packet = node.requests_of(Opcode.SET)[0]
    assert parse_frame_infos(packet.framing).keys() == {1, 5}
    assert unpack(">II", packet.extras) == (9, 60)


def test_counters(node: Any, client: Any) -> None:
    node.handlers[Opcode.INCREMENT] = lambda packet: response(
        packet.opcode, 0, packet.opaque, value=(7).to_bytes(8, "big")
    )
    refuse(node, Opcode.DECREMENT, Status.KEY_ENOENT)
    assert client.increment("c", 3, initial=4, expiry=9) == 7
    assert unpack(">QQI", node.requests_of(Opcode.INCREMENT)[0].extras) == (3, 4, 9)
    with pytest.raises(ConditionError):
        client.increment("c", -2)
    assert unpack(">QQI", node.requests_of(Opcode.DECREMENT)[0].extras) == (2, 0, 0xFFFFFFFF)


def test_exists_and_touch(node: Any, client: Any) -> None:
    states = {b"live": 0, b"tombstone": 1}

    def meta(packet: Packet) -> bytes:
        if packet.key not in states:
            return response(packet.opcode, Status.KEY_ENOENT, packet.opaque)
        extras = pack(">IIIQ", states[packet.key], 0, 0, 1)
        return response(packet.opcode, 0, packet.opaque, extras=extras)

    node.handlers[Opcode.GET_META] = meta
    node.handlers[Opcode.TOUCH] = node._token
    assert [client.exists(key) for key in ("live", "tombstone", "none")] == [True, False, False]
    assert client.touch("live", 30).cas > 0


def test_history(node: Any, client: Any) -> None:
    node.handlers[Opcode.POSITIONS] = lambda packet: response(
        packet.opcode,
        0,
        packet.opaque,
        value=b"".join(
            pack(">HB5x8Q", *unpack(">H", packet.value[at : at + 2]), 1, 1, 2, 3, 4, 5, 6, 7, 8)
            for at in range(0, len(packet.value), 2)
        ),
    )
    node.handlers[Opcode.BRANCH_LOG] = lambda packet: response(
        packet.opcode, 0, packet.opaque, value=pack(">QQQ", 1, 0, packet.vbucket)
    )
    assert [found.partition_id for found in client.positions()] == list(range(8))
    assert client.positions([3, 1])[0].high_seqno == 3
    assert client.branch_log(5)[0].branch == 5


def test_versions(node: Any, client: Any) -> None:
    refuse(node, Opcode.GET_VERSIONED, Status.KEY_ENOENT)
    assert client.get_versioned("k") is None
    node.handlers[Opcode.GET_VERSIONED] = lambda packet: response(
        packet.opcode, 0, packet.opaque, cas=1, extras=pack(">IQQQQIB", 0, 1, 2, 3, 4, 5, 1)
    )
    assert client.get_versioned("k").is_deleted
    assert client.get_versioned_many([b"k", b"j"]).keys() == {b"k", b"j"}
    refuse(node, Opcode.GET_VERSIONED, Status.KEY_ENOENT)
    assert client.get_versioned_many([b"k"]) == {}


def test_leases(node: Any, client: Any) -> None:
    def lease(packet: Packet) -> bytes:
        operation, lease_id, seconds = unpack(">BQH", packet.extras)
        if lease_id == 99 or packet.value[:2] == b"\0\7":
            return response(packet.opcode, Status.LEASE_LOST, packet.opaque)
        held = [pack(">HQQQQ", p, 40, 1, 2, 3) for p, _ in _pairs(packet.value)]
        return response(
            packet.opcode,
            0,
            packet.opaque,
            extras=pack(">QH", lease_id or 5, seconds or 600),
            value=b"" if operation == 3 else b"".join(held),
        )

    def _pairs(value: bytes) -> list[tuple[int, int]]:
        return [unpack(">HQ", value[at : at + 10]) for at in range(0, len(value), 10)]

    node.handlers[Opcode.LEASE] = lease
    held = client.open_lease([1, 2])
    assert (held[2].lease_id, held[2].at) == (5, 40)
    assert client.open_lease({3: 17})[3].partition_id == 3
    with pytest.raises(StreamError) as failed:
        client.open_lease([7])
    assert failed.value.code == "lease_lost"
    assert client.renew_lease(5, [1, 2]).keys() == {1, 2}
    assert client.renew_lease(99, [1]) == {}
    client.release_lease(5, [1])
    client.release_lease(99, [1])


def test_where_a_partition_has_no_owner_its_place_is_no_short_answer(client: Any) -> None:
    served = client._router.map
    client._router.map = served._replace(owners=(*served.owners[:-1], -1), revision=2**40)
    for ask in (client.positions, lambda: client.open_lease([0, 7])):
        with pytest.raises(RoutingError, match="no node serves partition 7"):
            ask()
    client._router.map = served._replace(owners=(-1,) * 8, revision=2**40)
    assert client.renew_lease(5, [7]) == {}


def test_other_servers_have_no_history(node: Any) -> None:
    node.features = []
    with (
        connect(node.address, bucket="flights") as client,
        pytest.raises(UsageError, match="is not a Millstream node"),
    ):
        client.positions()


def test_after_too_many_failures_it_gives_up(
    node: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.client.kv.FAILURES_MAX", 3)
    refuse(node, Opcode.SET, Status.E2BIG)
    with pytest.raises(UsageError):
        client.apply_many((f"k{n}", n) for n in range(9))
    assert client.get("k") is None


def test_deleting_what_is_gone_is_done(node: Any, client: Any) -> None:
    assert client.apply_many([("a", None), ("b", 1), ("b", None)]) == (3, [])
    assert not node.documents
