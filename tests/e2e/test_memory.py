"""A real node whose documents are eight times what it may keep of them in memory.

Shown: every document is there whether it is in memory or not, from the page cache and from the
disk; what changes an evicted document finds it as it was; the process stays small; the stream has
everything; a stop and a kill lose nothing that was persisted.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from struct import Struct

import pytest

from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, Packet, Status, request
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess
from support.streams.stream_witness import content_of, documents_of, merged

BUCKET = "default"
PARTITIONS = 16
QUOTA_BYTES = 16 * 1024 * 1024
"""The smallest that may be set."""
TIMES = 8
GROWTH_BYTES_MAX = 6 * QUOTA_BYTES
"""By which the processes may grow: quota, commits under way, buffers, pages of by-id, what malloc
keeps. Usual are 58 to 70 MiB, more where more threads run; all documents would be 128 MiB."""
VALUE_BYTES = 6_000
DOCUMENTS = TIMES * QUOTA_BYTES // VALUE_BYTES
BATCH = 200
CHANGED = range(6_000, 6_700)
"""Numbers of the documents that are changed in every way."""
WAYS = 7
COUNTER = 3
"""Which of the ways counts."""
WAIT_S = 20.0
TO_DISK = bytes((0x11, 3))
"""Frame info of a write that is answered once it is persisted."""
MakeNode = Callable[..., NodeProcess]
Model = dict[bytes, bytes]
_COUNT = Struct(">QQI")
_META = Struct(">IIIQ")


def key_of(number: int) -> bytes:
    return b"document-%06d" % number


def value_of(number: int, version: int = 1) -> bytes:
    if number in CHANGED[COUNTER::WAYS]:
        return b"37"
    return (b"%d version %d " % (number, version)).ljust(VALUE_BYTES, b".")


def start(make_node: MakeNode) -> NodeProcess:
    quota = f"{QUOTA_BYTES // 1024**2}MiB"
    return make_node("--bucket", f"{BUCKET}:{PARTITIONS}", "--memory-quota", quota).start()


def ask(client: RawClient, opcode: int, key: bytes, **parts: object) -> Packet:
    return client.ask(opcode, vbucket=partition_of(key, PARTITIONS), key=key, **parts)  # type: ignore[arg-type]


def frame(opcode: int, key: bytes, opaque: int, **parts: object) -> bytes:
    vbucket = partition_of(key, PARTITIONS)
    return request(opcode, vbucket=vbucket, opaque=opaque, key=key, **parts)  # type: ignore[arg-type]


def statistics(client: RawClient) -> dict[str, str]:
    found: dict[str, str] = {}
    packet = client.ask(Opcode.STAT)
    while packet.key or packet.value:
        found[packet.key.decode()] = packet.value.decode()
        packet = client.receive()
    return found


def read_back(client: RawClient) -> int:
    found = statistics(client)
    return int(found["reading_back_in_loop_total"]) + int(found["reading_back_by_threads_total"])


def batches(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    every = iter(keys)
    while batch := list(islice(every, BATCH)):
        yield batch


def write_all(client: RawClient, documents: Model) -> int:
    """Write in batches, again what is refused for the moment; return how often that was."""
    refused_total, until = 0, time.monotonic() + WAIT_S
    for batch in batches(documents):
        waiting = batch
        while waiting:
            assert time.monotonic() < until, f"{refused_total} refused"
            frames = (
                frame(Opcode.SET, key, at, extras=bytes(8), value=documents[key])
                for at, key in enumerate(waiting)
            )
            client.send(b"".join(frames))
            replies = [client.receive() for _ in waiting]
            assert {reply.status for reply in replies} <= {Status.SUCCESS, Status.ETMPFAIL}
            waiting = [waiting[r.opaque] for r in replies if r.status == Status.ETMPFAIL]
            refused_total += len(waiting)
            if waiting:
                time.sleep(0.005)  # as a client backs off
    return refused_total


def check_all(client: RawClient, documents: Model) -> None:
    """Every document is there, in a random order."""
    keys = list(documents)
    random.shuffle(keys)
    for batch in batches(keys):
        client.send(b"".join(frame(Opcode.GET, key, at) for at, key in enumerate(batch)))
        for key in batch:
            reply = client.receive()
            assert (reply.status, reply.value) == (Status.SUCCESS, documents[key]), key


def until_persisted(client: RawClient) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        found = statistics(client)
        if found["changes_high"] == found["changes_persisted"]:
            return
        assert time.monotonic() < until, found
        time.sleep(0.02)  # the node tells nobody: asked again


def forget_pages(node: NodeProcess) -> None:
    """Have the system give up the log's pages that it keeps in memory."""
    for path in (node.data_dir / "buckets").glob("*/log/*.seg"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@pytest.mark.slow
def test_documents_of_eight_times_the_quota(make_node: MakeNode) -> None:
    node = start(make_node)
    before = node.resident_bytes()
    documents = {key_of(number): value_of(number) for number in range(DOCUMENTS)}
    with RawClient(node.kv, BUCKET) as client:
        write_all(client, documents)
        until_persisted(client)
        found = statistics(client)
        assert int(found["memory_evicted_total"]) > DOCUMENTS // 2
        assert int(found["memory_used_bytes"]) <= QUOTA_BYTES
        assert int(found["documents_in_memory"]) < DOCUMENTS // 2
        assert 0.05 < float(found["memory_resident_share"]) < 0.5
        check_all(client, documents)
        forget_pages(node)
        check_all(client, dict(islice(documents.items(), 1_000)))
        assert node.resident_bytes() - before < GROWTH_BYTES_MAX
        gone = change_evicted(client, documents)
        check_all(client, documents)
        until_persisted(client)
        assert int(statistics(client)["memory_used_bytes"]) <= QUOTA_BYTES
        assert node.resident_bytes() - before < GROWTH_BYTES_MAX
    check_stream(node, documents, gone)
    assert node.stop() == 0
    with RawClient(node.start().kv, BUCKET) as client:
        check_all(client, documents)
        newer = {key: key + b" newer" for key in islice(documents, 7, None, 29)}
        write_all(client, newer)
        documents |= newer
        until_persisted(client)
    node.kill()
    with RawClient(node.start().kv, BUCKET) as client:
        check_all(client, documents)
        for key in gone:
            assert ask(client, Opcode.GET, key).status == Status.KEY_ENOENT
    check_stream(node, documents, gone)


def check_stream(node: NodeProcess, documents: Model, gone: set[bytes]) -> None:
    """A reader from 0 gets every document, and every deletion."""
    shown = merged(documents_of(node.kv, BUCKET, PARTITIONS))
    assert shown.keys() == documents.keys() | gone
    for key, content in shown.items():
        assert content.digest == content_of(key, 0, documents.get(key)).digest


def change_evicted(client: RawClient, documents: Model) -> set[bytes]:
    """Change old documents in every way, most of which were evicted; return the deleted ones."""
    gone: set[bytes] = set()
    ways = (update, append, exchange, count, touch, delete, add)
    assert len(ways) == WAYS
    assert ways[COUNTER] is count
    for at, way in enumerate(ways):
        keys = list(map(key_of, CHANGED[at::WAYS]))
        before = read_back(client)
        for key in keys:
            way(client, key, documents)
        assert read_back(client) - before >= len(keys) // 4, way.__name__
        gone |= {key for key in keys if key not in documents}
    return gone


def update(client: RawClient, key: bytes, documents: Model) -> None:
    """The next version follows the first one: its revision says so."""
    documents[key] = b"updated " + key
    written = ask(client, Opcode.SET, key, extras=bytes(8), value=documents[key])
    assert written.status == Status.SUCCESS
    meta = ask(client, Opcode.GET_META, key)
    assert meta.cas == written.cas
    assert _META.unpack_from(meta.extras)[3] == 2


def append(client: RawClient, key: bytes, documents: Model) -> None:
    documents[key] += b"more"
    assert ask(client, Opcode.APPEND, key, value=b"more").status == Status.SUCCESS


def exchange(client: RawClient, key: bytes, documents: Model) -> None:
    """A wrong CAS is refused, the right one taken."""
    wrong = ask(client, Opcode.REPLACE, key, cas=1, extras=bytes(8), value=b"wrong")
    assert wrong.status == Status.KEY_EEXISTS
    cas = ask(client, Opcode.GET, key).cas
    documents[key] = b"exchanged"
    done = ask(client, Opcode.REPLACE, key, cas=cas, extras=bytes(8), value=b"exchanged")
    assert done.status == Status.SUCCESS
    assert done.cas > cas


def count(client: RawClient, key: bytes, documents: Model) -> None:
    """A counter goes on from what it was, not from its initial value."""
    reply = ask(client, Opcode.INCREMENT, key, extras=_COUNT.pack(5, 0, 0))
    assert int.from_bytes(reply.value, "big") == 42
    documents[key] = b"42"


def touch(client: RawClient, key: bytes, documents: Model) -> None:
    hour = (3600).to_bytes(4, "big")
    assert ask(client, Opcode.TOUCH, key, extras=hour).status == Status.SUCCESS
    assert ask(client, Opcode.GET, key).value == documents[key]


def delete(client: RawClient, key: bytes, documents: Model) -> None:
    del documents[key]
    assert ask(client, Opcode.DELETE, key).status == Status.SUCCESS
    assert ask(client, Opcode.GET, key).status == Status.KEY_ENOENT
    assert ask(client, Opcode.DELETE, key).status == Status.KEY_ENOENT


def add(client: RawClient, key: bytes, documents: Model) -> None:
    """What exists on the disk exists; once deleted it does not."""
    refused = ask(client, Opcode.ADD, key, extras=bytes(8), value=b"no")
    assert refused.status == Status.KEY_EEXISTS
    assert ask(client, Opcode.DELETE, key, framing=TO_DISK).status == Status.SUCCESS
    documents[key] = b"born again"
    added = ask(client, Opcode.ADD, key, extras=bytes(8), value=documents[key])
    assert added.status == Status.SUCCESS
