from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import json

from millstream.errors import MillstreamError, UnavailableError, UsageError
from millstream.kv.aio import server as server_module
from millstream.kv.aio.server import KvServer
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.collaborators import Attachments
from millstream.kv.core.session.blob_commands import put_extras
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.limits import STREAM_OUT_BYTES_MAX
from millstream.model.partitions import PartitionState, partition_of
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, request
from support.kv.log_double import NOW, new_bucket
from support.kv.server_double import SlowUsers, StreamerDouble, connect, new_server

OPEN = request(Opcode.DCP_OPEN, key=b"name", extras=struct.pack(">II", 0, 1))


async def test_all_replies_of_a_wakeup_are_one_write() -> None:
    server = new_server()
    connection, transport = connect(server)
    put = request(Opcode.SET, key=b"k", value=b"v", extras=bytes(8))
    connection.data_received(put + request(Opcode.GET, key=b"k") + request(Opcode.NOOP))
    assert (transport.writes, len(transport.take())) == (1, 3)


async def test_a_connection_that_is_accepted_while_the_server_closes_is_closed() -> None:
    server = new_server()
    _, before = connect(server)
    server.close()
    connection, after = connect(server)
    assert before.is_closed
    assert after.is_aborted
    assert connection not in server.connections
    connection.connection_lost(None)


async def test_subscribers_hear_of_changes_once_and_the_disk_is_hurried() -> None:
    server = new_server()
    bucket = server.buckets["default"]
    told: list[str] = []
    bucket.subscribe(lambda: told.append("changed"))
    bucket.hurry = lambda: told.append("hurry")
    connection, transport = connect(server)
    put = request(Opcode.SET, key=b"k", value=b"v", extras=bytes(8))
    connection.data_received(put)
    connection.data_received(put * 4)
    await asyncio.sleep(0)
    assert told == ["changed"]
    transport.take()
    durable = request(Opcode.SET, key=b"k", extras=bytes(8), framing=b"\x11\2")
    connection.data_received(durable)
    await asyncio.sleep(0)
    assert told == ["changed", "hurry", "changed"]
    assert transport.take() == []
    partition = bucket.partitions[partition_of(b"k", 4)]
    partition.freeze()
    partition.persisted(6)
    server.on_persisted()
    await asyncio.sleep(0)
    assert [packet.status for packet in transport.take()] == [0]


async def test_durable_writes_are_looked_at_without_any_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "DURABLE_TICK_S", 0.001)
    server = new_server()
    clock = iter([NOW, NOW + 2_000_000, NOW + 6_000_000])
    server.now_ns = lambda: next(clock)
    connection, transport = connect(server)
    durable = request(Opcode.SET, key=b"k", extras=bytes(8), framing=b"\x13\2\0\5")
    connection.data_received(durable)
    assert transport.take() == []
    wrote, write = asyncio.Event(), transport.write
    transport.write = lambda data: (write(data), wrote.set())  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        await wrote.wait()
    assert [packet.status for packet in transport.take()] == [Status.SYNC_WRITE_AMBIGUOUS]
    assert server.waiting == set()
    server.close()


async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    server = new_server()
    connection, transport = connect(server)
    connection.pause_writing()
    assert not transport.is_reading_now
    connection.resume_writing()
    await asyncio.sleep(0)
    assert transport.is_reading_now


async def test_a_password_check_holds_requests_back() -> None:
    server = new_server(SlowUsers())
    connection, transport = connect(server, plain=False)
    login = request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0a\0right")
    connection.data_received(login + request(Opcode.SELECT_BUCKET, key=b"default"))
    assert not transport.is_reading_now
    await asyncio.gather(*server._checks)
    await asyncio.sleep(0)
    assert [packet.status for packet in transport.take()] == [0, 0]
    assert transport.is_reading_now


async def test_a_stream_of_the_same_name_replaces_the_older_one() -> None:
    server = new_server()
    first, second = connect(server, plain=False), connect(server, plain=False)
    for connection, transport in (first, second):
        connection.data_received(request(Opcode.SELECT_BUCKET, key=b"default") + OPEN)
        assert [packet.status for packet in transport.take()] == [0, 0]
    assert first[1].is_closed
    first[0].connection_lost(None)
    assert not second[1].is_closed
    bucket = server.buckets["default"]
    assert bucket.published.read("readers")["readers_lag"] == 7
    streamer = second[0].streamer
    assert isinstance(streamer, StreamerDouble)
    second[0].data_received(request(Opcode.DCP_STREAM_REQ))
    assert [packet.opcode for packet in second[1].take()] == [Opcode.DCP_NOOP]
    second[0].pause_writing()
    second[0].resume_writing()
    second[0].connection_lost(None)
    assert streamer.calls == ["resume", "close"]
    assert bucket.published.read("readers")["readers_connections"] == 0
    readers = bucket.published.read("readers")
    names = ("sent_bytes_total", "stuck_total", "dead_total")
    assert [readers["readers_" + name] for name in names] == [20, 2, 0]


async def test_nonsense_and_quit_close_after_the_replies() -> None:
    server = new_server()
    connection, transport = connect(server)
    connection.data_received(request(Opcode.NOOP) + b"\x7f" * 24)
    assert transport.is_closed
    assert len(transport.take()) == 1
    other, closing = connect(server)
    other.data_received(request(Opcode.QUIT))
    assert closing.is_closed
    assert len(closing.take()) == 1


async def test_a_peer_that_takes_nothing_is_cut_off() -> None:
    connection, transport = connect(new_server())
    connection.pause_writing()
    connection.close()
    assert transport.is_aborted


async def test_a_user_whose_rights_changed_must_log_in_again() -> None:
    server = new_server(SlowUsers())
    (connection, transport), (_, other) = (
        connect(server, plain=False),
        connect(server, plain=False),
    )
    connection.session.user = SimpleNamespace(name="ada", may=lambda *_: True)  # type: ignore[assignment]
    server.drop_user("ada")
    assert (transport.is_closed, other.is_closed) == (True, False)


async def test_a_stream_of_a_dropped_bucket_ends_whatever_is_selected_now() -> None:
    server = new_server()
    server.buckets["other"] = new_bucket(4, "other")  # type: ignore[index]
    connection, transport = connect(server, plain=False)
    connection.data_received(request(Opcode.SELECT_BUCKET, key=b"default") + OPEN)
    connection.data_received(request(Opcode.SELECT_BUCKET, key=b"other"))
    server.drop_bucket(server.buckets["default"])
    assert transport.is_closed


async def test_a_stream_that_is_not_read_stops_answering_in_the_end() -> None:
    server = new_server()
    connection, transport = connect(server, plain=False)
    connection.data_received(request(Opcode.SELECT_BUCKET, key=b"default") + OPEN)
    connection.pause_writing()
    assert transport.is_reading_now, "acknowledgements must still be heard"
    transport.buffered = STREAM_OUT_BYTES_MAX + 1
    connection.data_received(request(Opcode.NOOP))
    assert not transport.is_reading_now
    connection.resume_writing()
    await asyncio.sleep(0)
    assert transport.is_reading_now


async def test_a_dropped_bucket_closes_its_connections() -> None:
    server = new_server()
    _, transport = connect(server)
    _, other = connect(server, plain=False)
    server.drop_bucket(server.buckets["default"])
    assert (transport.is_closed, other.is_closed) == (True, False)
    server.close()
    assert other.is_closed


async def test_a_change_of_state_is_answered_when_it_is_done_and_maps_grow() -> None:
    server = new_server()
    connection, transport = connect(server, plain=False)
    bucket = server.buckets["default"]
    connection.data_received(request(Opcode.SELECT_BUCKET, key=b"default"))
    transport.take()
    answers: list[MillstreamError | None] = [
        None, UsageError("no such move"), UnavailableError("disk full")
    ]  # fmt: skip
    asked = []

    async def set_state(partition_id: int, state: PartitionState) -> None:
        asked.append((partition_id, state))
        error = answers.pop(0)
        if error is not None:
            raise error
        bucket.map_changes += 1

    bucket.copies.set_state = set_state
    before = json.decode(server.config(bucket))["rev"]
    for status in (Status.SUCCESS, Status.EINVAL, Status.ETMPFAIL):
        connection.data_received(
            request(Opcode.SET_VBUCKET_STATE, vbucket=1, extras=b"\4") + request(Opcode.NOOP)
        )
        assert transport.take() == []
        replies: list[Packet] = []
        async with asyncio.timeout(60):
            while len(replies) < 2:
                await asyncio.sleep(0)
                replies += transport.take()
        assert [reply.vbucket for reply in replies] == [status, 0]
    assert asked == [(1, PartitionState.DEAD)] * 3
    assert json.decode(server.config(bucket))["rev"] == before + 1


async def test_a_map_is_encoded_once_for_each_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    server = new_server()
    encode = server_module.cluster_config
    encoded: list[Bucket | None] = []

    def counted(bucket: Bucket | None, **fields: Any) -> bytes:
        encoded.append(bucket)
        return encode(bucket, **fields)

    monkeypatch.setattr(server_module, "cluster_config", counted)
    bucket = server.buckets["default"]
    nodes = (NodeAddress("a", "h", 1, 2), NodeAddress("b", "h", 3, 4))
    rows = (("a", "b"),) * bucket.partition_count
    before = server.config(bucket)
    assert server.config(bucket) is before
    bucket.set_map(BucketMap(1, nodes, rows), "a")
    mapped = server.config(bucket)
    assert server.config(bucket) is mapped
    assert json.decode(mapped)["revEpoch"] > json.decode(before)["revEpoch"]
    server.map_revision += 1
    assert server.config(bucket) == mapped, "as all nodes show it"
    assert len(encoded) == 3


class UploadDouble:
    def __init__(self) -> None:
        self.failure: MillstreamError | None = None
        self.may_go_on = asyncio.Event()
        self.abandoned = 0

    async def take(self, name: bytes, offset: int, total: int, data: bytes) -> int:
        await self.may_go_on.wait()
        if self.failure is not None:
            raise self.failure
        return offset + len(data)

    def abandon(self) -> None:
        self.abandoned += 1


async def test_attachments_are_put_one_piece_after_the_other() -> None:
    server = new_server()
    upload = UploadDouble()
    server.buckets["default"].attachments = Attachments(new_upload=lambda: upload)
    connection, transport = connect(server, plain=False)
    connection.session.select(server.buckets["default"])
    connection.session.features = frozenset((Feature.MILLSTREAM,))
    put = request(Opcode.PUT_BLOB, key=bytes(32), extras=put_extras(5, 9), value=b"four")
    connection.data_received(put + request(Opcode.NOOP))
    await asyncio.sleep(0)
    assert transport.take() == []
    upload.may_go_on.set()
    await until_done(server)
    put_reply, noop = transport.take()
    assert (put_reply.extras[-1], noop.opcode) == (9, Opcode.NOOP)
    for failure, status in (
        (UsageError("no"), Status.EINVAL), (UnavailableError("full"), Status.ENOMEM)
    ):  # fmt: skip
        upload.failure = failure
        connection.data_received(put)
        await until_done(server)
        assert transport.take()[0].status == status
    assert not upload.abandoned
    upload.may_go_on.clear()
    connection.data_received(put)
    await asyncio.sleep(0)
    connection.connection_lost(None)
    assert not upload.abandoned, "somebody is writing still"
    upload.may_go_on.set()
    await until_done(server)
    assert upload.abandoned == 1
    connection, _ = connect(server)
    connection.upload_for(server.buckets["default"])
    connection.connection_lost(None)
    assert upload.abandoned == 2


async def until_done(server: KvServer) -> None:
    await asyncio.gather(*server._checks)
