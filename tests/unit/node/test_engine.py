import asyncio
import errno
import gc
import json
import struct
import urllib.request
import weakref
from pathlib import Path

import pytest

from millstream.access.kv_login import Login
from millstream.client.connection import Connection
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.kv.aio import flusher
from millstream.kv.core.statistics import BUCKET_FIGURES, NODE_FIGURES, Histogram
from millstream.node.engine import Engine
from millstream.node.settings import Address, BucketSpec, Credential
from millstream.runtime.disk import OsFile
from millstream.upr.aio.link import UNIX, Link
from millstream.wire.mcbp import Feature, Opcode, Status, request


def port_of(engine, name):
    return int(engine.addresses()[name].rpartition(":")[2])


def get(engine, path):
    with urllib.request.urlopen(f"http://{engine.addresses()['http']}{path}") as answer:
        return answer.read().decode()


async def test_a_new_node_serves_the_default_bucket(make_settings):
    engine = await Engine.start(make_settings())
    try:
        assert engine.addresses()["memcached"] is None
        assert {"127.0.0.1"} <= engine.hosts
        assert [s.name for s in engine.bucket_statuses()] == ["default"]

        def use():
            with Connection("127.0.0.1", port_of(engine, "kv"), bucket="default") as connection:
                connection.request(0x01, extras=bytes(8), key=b"k", value=b"v")
                return connection.request(0x00, key=b"k").value

        assert await asyncio.to_thread(use) == b"v"
        text = await asyncio.to_thread(get, engine, "/_metrics")
        assert 'millstream_changes_high{bucket="default"} 1.0' in text
        assert "millstream_loop_lag_ms" in text
        partition = next(p for p in engine.served["default"].partitions if p.high_seqno)
        await engine.until_persisted("default", partition.partition_id, 1)
        assert partition.persisted_seqno == 1
    finally:
        await engine.stop()


async def test_a_bucket_is_deleted_while_its_disk_is_full(make_settings, monkeypatch):
    failures = []
    engine = await Engine.start(make_settings(flush_interval_ms=60_000), on_fatal=failures.append)
    try:
        partition = engine.served["default"].partitions[0]
        partition.put(b"k", b"v", 0, 0, 0, 0, 1)
        monkeypatch.setattr(flusher, "DISK_FULL_STOP_SECONDS_MAX", 0)

        def full(file, offset, data):
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(OsFile, "write_at", full)
        await engine.delete_bucket("default")
        assert engine.bucket_statuses() == []
        assert failures == [], "nothing of the node is wrong"
    finally:
        await engine.stop()


async def test_every_figure_is_described_and_every_description_is_published(make_settings):
    engine = await Engine.start(make_settings())
    try:
        metrics = engine.metrics()
        assert set(metrics.node) == set(NODE_FIGURES)
        found = metrics.buckets["default"]
        assert set(found) == set(BUCKET_FIGURES)
        for name, value in found.items():
            is_distribution = BUCKET_FIGURES[name].startswith("Distribution")
            assert isinstance(value, Histogram) == is_distribution, name
    finally:
        await engine.stop()


async def test_buckets_made_by_hand_are_served_at_once_and_kept(make_settings):
    settings = make_settings(buckets=(BucketSpec("a", 4),))
    engine = await Engine.start(settings)
    status = await engine.create_bucket("b", 2)
    with pytest.raises(ConditionError):
        await engine.create_bucket("b", 2)
    assert set(engine.served) == {"a", "b"}
    await engine.delete_bucket("a")
    assert set(engine.served) == {"b"}
    await engine.stop()
    engine = await Engine.start(make_settings())
    assert [s.uuid for s in engine.bucket_statuses()] == [status.uuid]
    await engine.stop()


async def test_a_deleted_bucket_closes_its_connections(make_settings):
    engine = await Engine.start(make_settings())
    connection = await asyncio.to_thread(
        Connection, "127.0.0.1", port_of(engine, "kv"), bucket="default"
    )
    await engine.delete_bucket("default")
    with pytest.raises(UnavailableError):
        await asyncio.to_thread(connection.request, 0x00, key=b"k")
    connection.close()
    await engine.stop()


async def test_of_a_deleted_bucket_nothing_stays_in_memory(make_settings):
    engine = await Engine.start(make_settings())
    try:
        await engine.create_bucket("b", 2)
        await engine.documents.info("b")
        await engine.create_bucket("newer", 2)
        left = weakref.ref(engine.served["b"])
        await engine.delete_bucket("b")
        gc.collect()
        assert left() is None
    finally:
        await engine.stop()


async def test_a_failed_start_gives_everything_back(make_settings):
    engine = await Engine.start(make_settings())
    busy = Address("127.0.0.1", port_of(engine, "kv"))
    with pytest.raises(UnavailableError, match="in use"):
        await Engine.start(make_settings(data=make_settings().data + "2", kv=busy))
    with pytest.raises(UsageError, match="needs users"):
        await Engine.start(
            make_settings(data=make_settings().data + "2", kv=Address("0.0.0.0", 0))
        )
    other = await Engine.start(make_settings(data=make_settings().data + "2"))
    await other.stop()
    await engine.stop()


async def test_users_made_at_the_start_stay(make_settings):
    engine = await Engine.start(make_settings(users=(Credential("ada", "secret"),)))
    await engine.stop()
    engine = await Engine.start(make_settings())
    assert engine.users.check_password("ada", "secret").is_admin
    session = json.loads(await asyncio.to_thread(get, engine, "/_session"))
    assert session["userCtx"]["roles"] == []
    await engine.stop()


async def test_a_refused_start_makes_no_users(make_settings):
    engine = await Engine.start(make_settings(data=make_settings().data + "2"))
    busy = Address("127.0.0.1", port_of(engine, "kv"))
    users = (Credential("ada", "secret"),)
    with pytest.raises(UsageError, match="needs TLS"):
        await Engine.start(make_settings(kv=Address("0.0.0.0", 0), users=users))
    with pytest.raises(UnavailableError, match="in use"):
        await Engine.start(make_settings(kv=busy, users=users))
    await engine.stop()
    engine = await Engine.start(make_settings())
    assert engine.users.is_empty
    await engine.stop()


def withdraw_receipt(data):
    """As a kill leaves it."""
    (receipt,) = Path(data).glob("buckets/*/log/receipt")
    receipt.write_bytes(b"".join(receipt.read_bytes().splitlines(keepends=True)[:2]))


async def test_only_a_bucket_that_had_a_history_is_said_to_begin_another(make_settings, caplog):
    caplog.set_level("INFO")
    engine = await Engine.start(make_settings())
    assert "without a clean stop" not in caplog.text
    await engine.stop()
    withdraw_receipt(make_settings().data)
    engine = await Engine.start(make_settings())
    await engine.stop()
    assert "bucket default: started without a clean stop" in caplog.text


async def test_a_failed_disk_is_told(make_settings):
    told = []
    engine = await Engine.start(make_settings(), on_fatal=told.append)
    error = OSError("no space")
    running = engine._buckets.running["default"]
    running.flusher.fail(error)
    assert told == [error]
    assert engine.served == {}
    await engine.stop()
    running.flusher._thread.shutdown()
    running.store.close()


async def test_the_nodes_own_processes_read_every_bucket_without_a_password(make_settings):
    engine = await Engine.start(make_settings(users=(Credential("ada", "secret"),)))
    data = Path(engine.settings.data)
    path = data / "run" / "kv.sock"
    try:
        assert path.parent.stat().st_mode & 0o777 == 0o700
        engine.served["default"].partitions[0].put(b"k", b"v", 0, 0, 0, 0, 1)
        address = f"{UNIX}{path.absolute()}"
        link = Link(Login(address, bucket="default"), address, 0, tls=None, timeout_s=60)
        features = await link.open()
        assert Feature.MILLSTREAM in features
        get = await link.ask(request(Opcode.GET, key=b"k"))
        assert get.status == Status.SUCCESS
        put = await link.ask(request(Opcode.SET, key=b"k", value=b"w", extras=bytes(8)))
        assert put.status == Status.EACCESS
        for flags, status in ((0, Status.EACCESS), (1, Status.SUCCESS)):
            extras = struct.pack(">II", 0, flags)  # feeding copies is refused, following is not
            opened = await link.ask(request(Opcode.DCP_OPEN, key=b"n", extras=extras))
            assert opened.status == status
        await link.close()
    finally:
        await engine.stop()
    assert not path.exists()


async def test_the_port_without_log_in_closes_on_a_node_with_users_unless_asked_for(make_settings):
    open_port = Address("127.0.0.1", 0)
    engine = await Engine.start(make_settings(memcached=open_port))
    try:
        host, port = "127.0.0.1", port_of(engine, "memcached")
        reader, writer = await asyncio.open_connection(host, port)
        engine.users.put("ada", "secret")
        engine.drop_user("ada")
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(host, port)
        assert engine.addresses()["memcached"] is None
    finally:
        await engine.stop()
    engine = await Engine.start(make_settings(memcached=open_port))
    assert engine.addresses()["memcached"] is None
    await engine.stop()
    engine = await Engine.start(make_settings(memcached=open_port, memcached_is_asked=True))
    assert engine.addresses()["memcached"] is not None
    await engine.stop()
