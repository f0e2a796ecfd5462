from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from millstream.access.kv_login import Login
from millstream.documents.stored import pack
from millstream.errors import ConditionError, MillstreamError, UnavailableError, UsageError
from millstream.kv.aio import replicator as replicator_module
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.aio.replicator import plain_link
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies import replica_stream as feed_module
from millstream.kv.core.copies.takeover_stream import TakingFeed
from millstream.kv.core.partition.blobs import BlobPiece
from millstream.kv.core.partition.partition import value_of
from millstream.kv.core.partition.revision_changes import write_document
from millstream.kv.core.session.blob_commands import PIECE_BYTES_MAX
from millstream.kv.core.session.session import KvSession
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.model.lineage import decode
from millstream.model.partitions import PartitionState
from millstream.upr.aio.link import Link
from millstream.upr.aio.server import StreamSession
from millstream.wire.mcbp import Feature, Opcode, Packet, cut_packets, request
from support.http.revised_documents import signature, with_leaf
from support.kv.session_double import HostDouble, new_session

ACTIVE, REPLICA, PENDING, DEAD = (
    PartitionState[name] for name in ("ACTIVE", "REPLICA", "PENDING", "DEAD")
)
NOW = 1_700_000_000_000_000_000
NODES = (NodeAddress("n1", "127.0.0.1", 1, 101), NodeAddress("n2", "127.0.0.1", 2, 102))


def config_of(uuid: str) -> bytes:
    """Return what a node says of a bucket with that uuid."""
    config = {"uuid": uuid, "nodesExt": [{}], "vBucketServerMap": {"vBucketMap": [[0], [0]]}}
    return json.dumps(config).encode()


class SocketDouble:
    """The source's end of a connection."""

    def __init__(self) -> None:
        self.is_paused = self.is_cut = False
        self.arrived = asyncio.Event()
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data
        self.arrived.set()

    def close(self) -> None:
        self.is_cut = True
        self.arrived.set()


class LinkDouble(Link):
    """A connection to a bucket of the same process: its session and its streams are real."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(Login("n1:1", None, "", "b"), "n1", 1, tls=None, timeout_s=1)
        self.cluster = cluster
        self.socket = SocketDouble()
        self.stream: StreamSession | None = None
        host = HostDouble()
        host.buckets = {"b": cluster.source.bucket}
        host.config = self.config  # type: ignore[method-assign]
        host.open_stream = self.open_stream  # type: ignore[method-assign,assignment]
        host.read_blob = self.read_blob  # type: ignore[attr-defined]
        self.session = new_session(host)

    def config(self, bucket: Bucket | None) -> bytes:
        return self.cluster.config

    def open_stream(self, session: KvSession, name: str, flags: int) -> StreamSession:
        self.cluster.names.append(name)
        bucket = self.cluster.source.bucket
        self.stream = StreamSession(
            self.socket, bucket, name, flags, is_extended=True, has_json=True, may_take_over=True
        )
        return self.stream

    def read_blob(
        self,
        session: KvSession,
        name: bytes,
        offset: int,
        size: int,
        done: Callable[[BlobPiece | None], None],
    ) -> None:
        done(self.cluster.source.bucket.attachments.read(name, offset, size))

    async def open(self) -> frozenset[int]:
        if self.cluster.failure is not None:
            self.cluster.failed += 1
            raise self.cluster.failure
        self.session.receive(request(Opcode.HELLO, value=b"\xff\x00\x00\x0b"), NOW)
        return self.cluster.features

    async def ask_all(self, frames: Sequence[bytes]) -> list[Packet]:
        return cut_packets(self.session.receive(b"".join(frames), NOW), FRAME_BYTES_MAX)[0]

    async def read(self, timeout_s: float = 0, bytes_max: int = 0) -> bytes:
        socket = self.socket
        while not socket.data and not socket.is_cut:
            socket.arrived.clear()
            await socket.arrived.wait()
        if socket.is_cut:
            raise UnavailableError("cut", code="connection_closed")
        data, socket.data = socket.data, b""
        return data

    async def write(self, data: bytes) -> None:
        self.socket.write(self.session.receive(data, NOW) + self.session.take_output())

    async def close(self) -> None:
        self.socket.close()
        if self.stream is not None:
            self.stream.close()


class Cluster:
    """Two nodes with one bucket: `source` is n1, `copy` n2."""

    def __init__(self) -> None:
        self.source: BucketEngine
        self.copy: BucketEngine
        self.links: list[LinkDouble] = []
        self.names: list[str] = []
        self.failed = 0
        self.failure: MillstreamError | None = None
        self.features = frozenset({int(Feature.MILLSTREAM)})
        self.config = config_of("00")
        self.revision = 0

    def link_to(self, node: NodeAddress, bucket: str) -> LinkDouble:
        assert (node.name, bucket) == ("n1", "b")
        self.links.append(LinkDouble(self))
        return self.links[-1]

    def set_map(self, *rows: tuple[str | None, ...]) -> None:
        self.revision += 1
        for engine, name in ((self.source, "n1"), (self.copy, "n2")):
            engine.bucket.set_map(BucketMap(self.revision, NODES, rows), name)

    def put(self, p: int, *pairs: str) -> None:
        for pair in pairs:
            key, _, value = pair.partition("=")
            self.source.bucket.partitions[p].put(key.encode(), value.encode(), 0, 0, 0, 0, NOW)
        self.source.bucket.changed()

    def has(self, p: int) -> dict[str, str]:
        partition, found = self.copy.bucket.partitions[p], {}
        for key in partition.known_keys():
            frame = partition.newest(key)
            if frame is not None and frame[1] == Opcode.DCP_MUTATION:
                found[key.decode()] = value_of(frame).decode()
        return found

    def is_durable(self, p: int) -> bool:
        """Whether the copy has all that the source has, on disk."""
        high = self.source.bucket.partitions[p].high_seqno
        return self.copy.bucket.partitions[p].persisted_seqno == high

    def figure(self, name: str) -> float:
        found = self.copy.bucket.published.read("replication")[f"replication_{name}"]
        assert isinstance(found, int)
        return found


async def opened(path: Path, cluster: Cluster | None = None) -> BucketEngine:
    return await BucketEngine.open(
        path,
        name="b",
        uuid="00",
        partition_count=2,
        flush_interval_ms=1,
        on_persisted=lambda: None,
        on_fatal=lambda error: None,
        on_corrupt=lambda error: None,
        link_to=plain_link if cluster is None else cluster.link_to,  # type: ignore[arg-type]
    )


@pytest.fixture(name="cluster")
async def _cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    for module in (replicator_module, feed_module):
        monkeypatch.setattr(module, "PAUSE_S_MIN", 0.001)
        monkeypatch.setattr(module, "PAUSE_S_MAX", 0.01)
    cluster = Cluster()
    for name in ("source", "copy"):
        (tmp_path / name).mkdir()
    cluster.copy = await opened(tmp_path / "copy", cluster)
    for p in range(2):
        for state in (DEAD, PartitionState.ABSENT, REPLICA):
            await cluster.copy.copies.set_state(p, state)
    cluster.source = await opened(tmp_path / "source")  # later: its histories are newer
    yield cluster
    await cluster.copy.stop()
    await cluster.source.stop()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - the replicator's own timers are waited for
            await asyncio.sleep(0)


def failure_of(cluster: Cluster, p: int) -> str:
    status = cluster.copy.replicator.status(p)
    assert status is not None
    return status.failure


async def test_copies_follow_what_the_map_says(cluster: Cluster) -> None:
    cluster.put(0, "a=1", "b=2")
    cluster.put(1, "c=3")
    assert cluster.figure("sources") == 0
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.is_durable(0) and cluster.is_durable(1))
    assert (cluster.has(0), cluster.has(1)) == ({"a": "1", "b": "2"}, {"c": "3"})
    assert cluster.names == ["millstream:replication:n2->n1:b"]
    source = cluster.source.bucket.partitions[0]
    await until(lambda: source.acknowledged is not None and source.durable_seqno == 2)
    assert (cluster.figure("following"), cluster.figure("streams")) == (2, 2)
    assert cluster.figure("changes_total") == 3
    status = cluster.copy.replicator.status(0)
    assert status is not None
    assert (status.node, status.is_streaming, status.failure) == ("n1", True, "")


async def test_attachments_are_here_before_the_documents_that_name_them(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def large() -> AsyncIterator[bytes]:
        yield bytes(PIECE_BYTES_MAX)
        yield b"and more"

    put = await cluster.source.blobs.put(large())
    partition = cluster.source.bucket.partitions[0]
    data = bytes(PIECE_BYTES_MAX) + b"and more"
    document = with_leaf(None, "1-" + signature(1), blobs=(data,))
    write_document(partition, b"k", *pack(document), NOW)
    lost = with_leaf(None, "1-" + signature(1), blobs=(b"lost",))
    write_document(partition, b"l", *pack(lost), NOW)
    cluster.put(0, "a=1")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.is_durable(0))
    assert cluster.copy.blobs.has(put.sha256)
    assert cluster.copy.blobs.piece(put.sha256, PIECE_BYTES_MAX, 99) == (len(data), b"and more")
    ours, theirs = (one.bucket.partitions[0].entry(b"k") for one in (cluster.source, cluster.copy))
    assert ours is not None
    assert theirs is not None
    assert (ours.frame, ours.side) == (theirs.frame, theirs.side)
    assert set(cluster.has(0)) == {"a", "k", "l"}, "what nobody has is not waited for"
    assert "is lost" in caplog.text.replace("it is lost", "is lost")
    assert len(cluster.links) == 3


async def test_lineages_are_the_same_on_both_disks(cluster: Cluster) -> None:
    cluster.put(0, "a=1", "b=2")
    await cluster.source.copies.set_state(0, DEAD)
    await cluster.source.copies.set_state(0, ACTIVE)
    cluster.put(0, "a=3", "c=4")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.is_durable(0))
    await until(lambda: cluster.source.bucket.partitions[0].persisted_seqno == 4)
    found = [
        {key: engine.store.find(0, key) for key in (b"a", b"b", b"c")}
        for engine in (cluster.source, cluster.copy)
    ]
    kept = [{key: one and one[::2] for key, one in side.items()} for side in found]
    assert kept[0] == kept[1], "frames and lineages"
    lineage = decode(found[1][b"a"].lineage)  # type: ignore[union-attr]
    old, new = (entry.branch for entry in reversed(cluster.copy.bucket.partitions[0].failover_log))
    assert (lineage.birth_branch, lineage.birth_seqno) == (old, 1)
    assert lineage.runs == ((old, 1), (new, 2))


async def test_a_lost_connection_is_opened_again(cluster: Cluster) -> None:
    cluster.put(0, "a=1")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    for number in range(3):
        await until(lambda: cluster.is_durable(0))
        await cluster.links[-1].close()
        cluster.put(0, f"k{number}=x")
    await until(lambda: cluster.is_durable(0))
    assert len(cluster.has(0)) == 4
    assert cluster.figure("reconnects_total") == 3
    assert cluster.figure("changes_total") == 4


async def test_a_source_that_cannot_be_reached_is_tried_again(cluster: Cluster) -> None:
    cluster.failure = UnavailableError("nobody there", code="unreachable")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.failed > 3)
    status = cluster.copy.replicator.status(1)
    assert status is not None
    assert (status.is_streaming, status.failure) == (False, "nobody there")
    assert (cluster.figure("connected"), cluster.figure("following")) == (0, 2)
    cluster.failure = None
    cluster.put(1, "a=1")
    await until(lambda: cluster.is_durable(1))


@pytest.mark.parametrize(
    ("config", "said"), [(config_of("ff"), "is another one"), (b"no", "an invalid map")]
)
async def test_another_bucket_is_not_followed(cluster: Cluster, config: bytes, said: str) -> None:
    cluster.config = config
    cluster.put(0, "a=1")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.figure("reconnects_total") > 1)
    status = cluster.copy.replicator.status(0)
    assert status is not None
    assert said in status.failure
    assert cluster.names == []


async def test_a_server_of_another_kind_is_not_followed(cluster: Cluster) -> None:
    cluster.features = frozenset()
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.figure("reconnects_total") > 1)
    assert cluster.names == []


async def test_a_copy_follows_as_long_as_it_may(cluster: Cluster) -> None:
    cluster.set_map(("n1", "n2"), ("n2", "n1"))
    assert cluster.copy.replicator.status(1) is None, "this node should have the active one"
    cluster.put(0, "a=1")
    await until(lambda: cluster.is_durable(0))
    await cluster.copy.copies.set_state(0, DEAD)
    assert cluster.figure("sources") == 0
    cluster.put(0, "b=1")
    await cluster.copy.copies.set_state(0, REPLICA)
    await until(lambda: cluster.is_durable(0))
    await cluster.copy.copies.set_state(0, PENDING)
    cluster.put(0, "c=1")
    await until(lambda: cluster.is_durable(0))
    cluster.set_map((None, "n2"), ("n2", "n1"))
    assert (cluster.figure("sources"), cluster.figure("changes_total")) == (0, 3)


async def test_an_operator_rolls_a_copy_back_and_it_catches_up(cluster: Cluster) -> None:
    cluster.put(0, "a=1")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.is_durable(0))
    cluster.put(0, "b=1")
    await until(lambda: cluster.is_durable(0))
    assert await cluster.copy.copies.roll_back(0, 1) == 1
    await until(lambda: cluster.is_durable(0))
    assert cluster.has(0) == {"a": "1", "b": "1"}


async def test_a_source_that_went_back_has_the_copy_undone(cluster: Cluster) -> None:
    cluster.put(0, "a=1")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.is_durable(0))
    cluster.put(0, "b=1", "a=2")
    await until(lambda: cluster.is_durable(0))
    assert await cluster.source.copies.roll_back(0, 1) == 1
    cluster.put(0, "c=1")
    await until(lambda: cluster.has(0) == {"a": "1", "c": "1"} and cluster.is_durable(0))
    assert cluster.figure("rollbacks_total") == 1
    copy, source = cluster.copy.bucket.partitions[0], cluster.source.bucket.partitions[0]
    assert copy.failover_log == source.failover_log


async def test_a_copy_that_promised_a_later_branch_does_not_follow(cluster: Cluster) -> None:
    cluster.put(0, "a=1")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.is_durable(0))
    branch = cluster.source.bucket.partitions[0].failover_log[0].branch + 1
    await cluster.copy.copies.promise([0], branch)
    cluster.put(0, "b=1")
    cluster.put(1, "c=1")
    await until(lambda: cluster.is_durable(1))
    status = cluster.copy.replicator.status(0)
    assert status is not None
    assert not status.is_streaming
    await until(lambda: "is older than" in failure_of(cluster, 0))
    assert cluster.has(0) == {"a": "1"}


async def test_nothing_is_taken_while_writes_are_refused(cluster: Cluster) -> None:
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.figure("streams") == 2)
    cluster.copy.bucket.writes.refuse("memory")
    cluster.put(0, "a=1")
    await until(lambda: cluster.figure("changes_total") == 1)  # that was under way
    taken = cluster.copy.bucket.partitions[0].queue.high_seqno
    cluster.put(0, "b=1")
    await until(lambda: bool(cluster.links[-1].socket.data))
    assert cluster.copy.bucket.partitions[0].queue.high_seqno == taken
    cluster.copy.bucket.writes.accept("memory")
    await until(lambda: cluster.is_durable(0))


async def test_the_lag_is_asked_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicator_module, "HIGHS_INTERVAL_S", 0.001)
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.figure("streams") == 2)
    branch = cluster.source.bucket.partitions[0].failover_log[0].branch + 1
    await cluster.copy.copies.promise([0], branch)
    cluster.put(0, "a=1", "b=1")
    await until(lambda: cluster.figure("lag") == 2)
    assert cluster.figure("behind") == 1


async def test_a_rollback_is_finished_before_the_end(cluster: Cluster) -> None:
    cluster.put(0, "a=1")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.is_durable(0))
    cluster.put(0, "b=1")
    await until(lambda: cluster.is_durable(0))
    async with cluster.copy.flusher.paused():
        await cluster.source.copies.roll_back(0, 1)
        await until(lambda: len(cluster.copy.replicator._undoing) == 1)
        stopping = asyncio.get_running_loop().create_task(cluster.copy.replicator.stop())
        await until(lambda: len(cluster.copy.replicator._tasks) == 0)
        assert not stopping.done()
    await stopping
    assert cluster.copy.bucket.partitions[0].high_seqno == 1
    assert cluster.figure("rollbacks_total") == 0, "its feed is gone"


@pytest.mark.slow
async def test_a_mistake_with_one_copy_does_not_end_the_following_of_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take, broken = TakingFeed.receive, True

    def receive(feed: TakingFeed, data: bytes, now_ms: int) -> None:
        take(feed, data, now_ms)
        if broken and b"bad" in data:
            raise ZeroDivisionError("planted")

    monkeypatch.setattr(TakingFeed, "receive", receive)
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.figure("streams") == 2)
    cluster.put(0, "bad=1")
    await until(lambda: "ZeroDivisionError" in failure_of(cluster, 1))
    await until(lambda: len(cluster.links) > 2)
    broken = False
    cluster.put(1, "good=1")
    await until(lambda: cluster.is_durable(0) and cluster.is_durable(1))
    assert (cluster.has(0), cluster.has(1)) == ({"bad": "1"}, {"good": "1"})
    logged = [record for record in caplog.records if record.exc_info]
    assert [record.levelname for record in logged] == ["ERROR"], "once, with where it happened"


async def test_a_mistake_while_undoing_is_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    undo, failures = cluster.copy.copies.undo, [ZeroDivisionError("planted")]

    async def fail_first(*effect: int) -> int | None:
        if failures:
            raise failures.pop()
        return await undo(*effect)

    monkeypatch.setattr(cluster.copy.copies, "undo", fail_first)
    cluster.put(0, "a=1")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.is_durable(0))
    cluster.put(0, "b=1")
    await until(lambda: cluster.is_durable(0))
    await cluster.source.copies.roll_back(0, 1)
    await until(lambda: cluster.copy.bucket.partitions[0].high_seqno == 1)
    assert not failures
    assert "is not rolled back for node n1" in caplog.text


# -- taking over


def states(cluster: Cluster) -> tuple[PartitionState, PartitionState]:
    return cluster.source.bucket.partitions[0].state, cluster.copy.bucket.partitions[0].state


async def following(cluster: Cluster) -> None:
    cluster.put(0, "a=1")
    cluster.set_map(("n1", "n2"), ("n1", "n2"))
    await until(lambda: cluster.is_durable(0))


@pytest.mark.slow
async def test_a_copy_takes_over_while_its_source_is_written_to(cluster: Cluster) -> None:
    await following(cluster)
    source, copy = cluster.source.bucket.partitions[0], cluster.copy.bucket.partitions[0]
    log = source.failover_log
    taking = asyncio.get_running_loop().create_task(cluster.copy.replicator.take_over(0))
    number = 0
    while not taking.done():
        if source.refusal is None:
            number += 1
            cluster.put(0, f"k{number}=x")
        await asyncio.sleep(0)
    await taking
    assert states(cluster) == (DEAD, ACTIVE)
    assert copy.failover_log == log
    assert len(cluster.has(0)) == number + 1
    assert copy.high_seqno == copy.persisted_seqno == source.high_seqno
    assert cluster.copy.replicator.status(0) is None
    await cluster.copy.replicator.take_over(0)
    await until(lambda: cluster.source.bucket.begin_take_over(0))
    await until(lambda: cluster.figure("streams") == 1)


async def test_a_mistake_while_taking_over_is_told_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*effect: int) -> None:
        raise ZeroDivisionError("planted")

    await following(cluster)
    with monkeypatch.context() as patched:
        patched.setattr(cluster.copy.copies, "take_over", fail)
        with pytest.raises(UnavailableError, match="ZeroDivisionError"):
            await cluster.copy.replicator.take_over(0)
    await until(lambda: states(cluster) == (ACTIVE, REPLICA))
    cluster.put(0, "b=1")
    await until(lambda: cluster.is_durable(0))


async def test_what_cannot_be_taken_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicator_module, "REACH_S_MAX", 0.01)
    with pytest.raises(UsageError) as not_following:
        await cluster.copy.replicator.take_over(0)
    assert not_following.value.code == "not_following"
    await following(cluster)
    assert cluster.source.bucket.begin_take_over(0)
    with pytest.raises(UnavailableError, match="status 0x85") as refused:
        await cluster.copy.replicator.take_over(0)
    assert refused.value.code == "not_taken_over"
    assert states(cluster) == (ACTIVE, REPLICA)
    cluster.put(0, "b=1")
    await until(lambda: cluster.is_durable(0))
    cluster.failure = UnavailableError("nobody there", code="unreachable")
    await cluster.links[-1].close()
    await until(lambda: cluster.failed > 0)
    with pytest.raises(UnavailableError, match="nobody there") as unreachable:
        await cluster.copy.replicator.take_over(0)
    assert unreachable.value.code == "unreachable"


async def test_a_take_over_whose_connection_is_lost_leaves_a_copy_that_follows(
    cluster: Cluster,
) -> None:
    await following(cluster)
    async with cluster.source.flusher.paused():  # so that the source cannot stop its copy
        taking = asyncio.get_running_loop().create_task(cluster.copy.replicator.take_over(0))
        await until(lambda: states(cluster)[1] is PENDING)
        with pytest.raises(ConditionError) as twice:
            await cluster.copy.replicator.take_over(0)
        assert twice.value.code == "taking_over"
        await cluster.links[-1].close()
        with pytest.raises(UnavailableError, match="connection was lost"):
            await taking
    assert states(cluster)[1] is REPLICA
    await until(lambda: states(cluster)[0] in (ACTIVE, DEAD))


async def test_a_source_that_cannot_be_stopped_serves_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await following(cluster)
    monkeypatch.setattr(cluster.source.bucket, "stop_copy", disk_is_full)
    with pytest.raises(UnavailableError, match="ended it with reason 2"):
        await cluster.copy.replicator.take_over(0)
    assert states(cluster) == (ACTIVE, REPLICA)
    cluster.put(0, "b=1")
    await until(lambda: cluster.is_durable(0))


async def disk_is_full(partition_id: int, epoch: int) -> None:
    raise UnavailableError("no room", code="disk_full")


async def test_a_take_over_that_lasts_too_long_is_given_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicator_module, "TAKE_OVER_S_MAX", 0.2)
    await following(cluster)
    stop = asyncio.Event()
    monkeypatch.setattr(cluster.source.bucket, "stop_copy", lambda *_: stop.wait())
    with pytest.raises(UnavailableError, match="took longer"):
        await cluster.copy.replicator.take_over(0)
    assert states(cluster) == (ACTIVE, REPLICA)
    stop.set()
    cluster.put(0, "b=1")
    await until(lambda: cluster.is_durable(0))


async def test_a_node_that_stops_gives_its_take_overs_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await following(cluster)
    stop = asyncio.Event()
    monkeypatch.setattr(cluster.source.bucket, "stop_copy", lambda *_: stop.wait())
    taking = asyncio.get_running_loop().create_task(cluster.copy.replicator.take_over(0))
    await until(lambda: states(cluster)[1] is PENDING)
    await cluster.copy.replicator.stop()
    with pytest.raises(UnavailableError):
        await taking
    assert states(cluster) == (ACTIVE, REPLICA)
    stop.set()
