"""Documents of a bucket that is on this node only, on a real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.databases.documents.distributed_documents import DistributedDocuments
from millstream.documents.purge_list import Purged
from millstream.documents.tokens import parse_token, vector_to_json
from millstream.errors import ConditionError, UnavailableError
from millstream.gateway.core.api.documents import Written
from millstream.kv.aio.documents import changes
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.copies import moves
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.model.partitions import PartitionState
from support.http.sharing_nodes import Network, SharingNode
from support.kv.running_bucket import opened, put


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[BucketEngine]:
    engine = await opened(tmp_path / "b")
    yield engine
    await engine.stop()


def documents_of(running: BucketEngine) -> DistributedDocuments:
    return SharingNode("a", running, Network()).distributed


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_documents_and_what_is_known_of_them(running: BucketEngine) -> None:
    documents = documents_of(running)
    made = await documents.update("b", [("x", put()), ("y", put(b'{"n":1}'))], is_durable=True)
    assert all(isinstance(one, Written) for one in made)
    found = await documents.read("b", "y", is_durable=True)
    assert found is not None
    assert found.winner.rev.startswith("1-")
    info = await documents.info("b")
    assert (info.document_count, info.deleted_count, info.partitions) == (2, 0, 4)
    number = int(running.bucket.uuid, 16) % 10**15
    assert info.instance_start_time == str(10**15 + number)
    assert not isinstance(parse_token(info.update_seq), int)
    assert info.file_bytes > 0
    assert not info.compact_running
    with pytest.raises(ConditionError):
        await documents.info("none")


async def test_a_commit_leaves_nothing_to_be_lost(running: BucketEngine) -> None:
    documents = documents_of(running)
    await documents.update("b", [(f"k{n}", put()) for n in range(50)], is_durable=False)
    await documents.commit("b")
    assert all(p.persisted_seqno == p.high_seqno for p in running.bucket.partitions)


async def test_a_scan_goes_by_ids(running: BucketEngine) -> None:
    documents = documents_of(running)
    names = [f"k{n:03}" for n in range(120)] + ["_design/d", "é"]
    await documents.update("b", [(name, put()) for name in names], is_durable=False)
    gone = running.bucket.partition_for(b"k005")
    gone.delete(b"k005", 0, 1_700_000_000 * 10**9)
    running.bucket.partition_for(b"\xff").put(b"\xff", b"{}", 0, 0, 0, 0, 1)

    async def ids(start: bytes, end: bytes, *, descending: bool = False) -> list[str]:
        found = documents.scan("b", start, end, descending=descending)
        return [doc_id async for doc_id, _ in found]

    whole = await ids(b"", b"\xff")
    assert whole == sorted(set(names) - {"k005"}, key=str.encode)
    assert await ids(b"k003", b"k007") == ["k003", "k004", "k006", "k007"]
    assert await ids(b"k003", b"k006", descending=True) == ["k006", "k004", "k003"]
    running.bucket.partitions[0].state = PartitionState.REPLICA
    with pytest.raises(UnavailableError, match="not active"):
        await ids(b"", b"\xff")


async def test_a_request_waits_a_little_until_it_is_known_what_a_majority_has(
    running: BucketEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As right after a promotion, when the copies are about to connect."""
    documents = documents_of(running)
    await documents.update("b", [(f"k{n}", put()) for n in range(20)], is_durable=True)
    partition = running.bucket.partitions[0]
    partition.acknowledged = Acknowledged(partition)
    row = partition.acknowledged
    row.set_rows((("a", "b"),), "a")

    def forget() -> None:
        """The partition is promoted: what its copies have is unknown."""
        moves.rename(partition, PartitionState.REPLICA)
        moves.rename(partition, PartitionState.ACTIVE)

    def follow() -> None:
        row.join("b", 1)
        row.acknowledge("b", 1, partition.high_seqno, partition.high_seqno)

    forget()
    asyncio.get_running_loop().call_later(0.05, follow)
    assert await documents.write_local("b", "x", b"{}", None) == 1
    forget()
    asyncio.get_running_loop().call_later(0.05, follow)
    assert (await documents.info("b")).document_count == 20
    forget()
    monkeypatch.setattr(changes, "UNKNOWN_SECONDS_MAX", 0.0)
    with pytest.raises(UnavailableError, match="majority"):
        await documents.write_local("b", "y", b"{}", None)


async def test_attachments(running: BucketEngine) -> None:
    documents = documents_of(running)
    blob = await documents.put_blob("b", pieces(b"abc", b"def"))
    assert blob.length == 6
    found = documents.open_blob("b", blob.sha256, 1, 5)
    assert b"".join([piece async for piece in found]) == b"bcde"


async def test_settings_and_local_documents_survive_a_restart(tmp_path: Path) -> None:
    running = await opened(tmp_path / "b")
    documents = documents_of(running)
    assert (await documents.settings("b")).revs_limit == 1000
    await documents.set_revs_limit("b", 7)
    await documents.set_security("b", b'{"a":1}')
    assert await documents.write_local("b", "x", b"{}", None) == 1
    await documents.set_purged_infos_limit("b", 2)
    noted = [Purged(name, ["1-x"]) for name in "xyz"]
    await asyncio.gather(*(documents.note_purges("b", [one]) for one in noted))
    await running.stop()
    running = await opened(tmp_path / "b")
    documents = documents_of(running)
    settings = await documents.settings("b")
    assert (settings.revs_limit, settings.security) == (7, b'{"a":1}')
    found = await documents.read_local("b", "x")
    assert found is not None
    assert (found.rev, found.body) == (1, b"{}")
    assert [one.id for one in await documents.locals("b")] == ["x"]
    assert await documents.purges("b") == (2, tuple(noted[1:]))
    await running.stop()


async def test_a_local_document_goes_with_the_changes_it_speaks_of(tmp_path: Path) -> None:
    running = await opened(tmp_path / "b")
    documents = documents_of(running)
    await documents.write_local("b", "x", b'{"n":1}', None)
    await documents.update("b", [(f"k{n}", put()) for n in range(20)], is_durable=True)
    await documents.write_local("b", "x", b'{"n":2}', 1)
    assert (await documents.read_local("b", "x")).body == b'{"n":2}'  # type: ignore[union-attr]
    number = running.bucket.partition_for(b"k1").partition_id
    await running.copies.roll_back(number, 0)
    assert (await documents.read_local("b", "x")).body == b'{"n":1}'  # type: ignore[union-attr]
    await running.stop()


async def test_the_log_of_a_replication_from_here_stays(tmp_path: Path) -> None:
    running = await opened(tmp_path / "b")
    documents = documents_of(running)
    ours = (
        b'{"source_uuid":"00","target_uuid":"t","history":[{"session_id":"c",'
        b'"recorded_seq":1,"source_vec":{}}]}'
    )
    theirs = ours.replace(b'"00"', b'"other"')
    await documents.update("b", [(f"k{n}", put()) for n in range(20)], is_durable=True)
    for name, body in (("ours", ours), ("theirs", theirs), ("odd", ours[:-1])):
        await documents.write_local("b", name, body, None)
    await running.copies.roll_back(running.bucket.partition_for(b"k1").partition_id, 0)
    assert [one.id for one in await documents.locals("b")] == ["ours"]
    await running.stop()


async def test_what_a_target_lost_is_no_longer_in_its_log(tmp_path: Path) -> None:
    running = await opened(tmp_path / "b")
    documents = documents_of(running)
    before = documents._changes.of("b").latest()
    await documents.update("b", [("k1", put())], is_durable=True)
    after = documents._changes.of("b").latest()
    history = [
        {"session_id": name, "recorded_seq": 1, "target_vec": vector_to_json(vector)}
        for name, vector in (("new", after), ("old", before))
    ]
    log = {"target_uuid": "00", "session_id": "new", "history": history}
    await running.copies.roll_back(running.bucket.partition_for(b"k1").partition_id, 0)
    await documents.write_local("b", "log", json.dumps(log).encode(), None)
    found = await documents.read_local("b", "log")
    assert found is not None
    shown = json.loads(found.body)
    assert (shown["session_id"], len(shown["history"])) == ("old", 1)
    await documents.write_local("b", "log", json.dumps(log | {"history": history[:1]}).encode(), 1)
    assert await documents.read_local("b", "log") is None
    await running.stop()
