"""A stream reader that remembers everything, to convict a server that contradicts itself.

Written from the protocol's description, not from the product: its own rollback rule, its own
bookkeeping of positions.

Invariants:
1. A seqno under a partition uuid has one content for ever (`History`).
2. A position (uuid, seqno, snapshot start and end) is judged as the rollback rule says, and after
   the rollback it asks for, the reader's documents equal the server's (`Witness`).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from millstream.wire.mcbp import RESPONSE, Opcode, Packet, Status, request, response
from support.kv.raw_client import RawClient

Failovers = list[tuple[int, int]]
STREAM_EXTRAS = Struct(">II5Q")
FOR_EVER = 2**64 - 1
WINDOW_BYTES = 1 << 20
_PAIR = Struct(">QQ")
_SEQNOS = Struct(">HQ")


class Content(NamedTuple):
    """What one seqno did."""

    key: bytes
    cas: int
    is_deleted: bool
    digest: bytes


def content_of(key: bytes, cas: int, value: bytes | None) -> Content:
    """Describe a write; a value of None is a deletion."""
    digest = b"" if value is None else hashlib.blake2b(value, digest_size=12).digest()
    return Content(key, cas, value is None, digest)


class History:
    """Every (partition, uuid, seqno) ever seen, and what it was."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int, int], Content] = {}

    def note(self, partition: int, uuid: int, seqno: int, content: Content) -> None:
        """Remember, and fail if it was something else before."""
        before = self.seen.setdefault((partition, uuid, seqno), content)
        assert before == content, (
            f"partition {partition} uuid {uuid:012x} seqno {seqno} was {before}, is {content}"
        )


def failovers_of(value: bytes) -> Failovers:
    """Parse a failover log: (uuid, seqno), newest first."""
    return list(_PAIR.iter_unpack(value))


def uuid_at(log: Failovers, seqno: int) -> int:
    """Return the uuid in whose history `seqno` was written."""
    return next((uuid for uuid, began in log if began < seqno), log[-1][0])


def high_seqnos(client: RawClient) -> dict[int, int]:
    """Ask for the high seqno of every partition."""
    return dict(_SEQNOS.iter_unpack(client.ask(Opcode.GET_ALL_VB_SEQNOS).value))


@dataclass
class Place:
    """One partition as the reader knows it."""

    log: Failovers = field(default_factory=lambda: [(0, 0)])
    seqno: int = 0
    snap_start: int = 0
    snap_end: int = 0
    items: list[tuple[int, Content]] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])

    @property
    def uuid(self) -> int:
        """The uuid that belongs into this position."""
        return uuid_at(self.log, self.snap_end)

    def documents(self) -> dict[bytes, tuple[int, Content]]:
        """Return the newest change per key."""
        return {content.key: (seqno, content) for seqno, content in self.items}

    def undo_to(self, seqno: int) -> None:
        """Go back to the newest complete snapshot not above `seqno`."""
        self.ends = [end for end in self.ends if end <= seqno]
        self.seqno = self.snap_start = self.snap_end = self.ends[-1]
        self.items = [item for item in self.items if item[0] <= self.seqno]


def expected_rollback(place: Place, log: Failovers, high: int) -> int | None:
    """Judge a position by the published rule, without purges; None: go on."""
    if place.seqno == 0:
        return None
    snap_start, snap_end = place.snap_start, place.snap_end
    upper, found = high, False
    for uuid, began in log:
        if uuid == place.uuid:
            found = True
            break
        upper = began
    if not found:
        return 0
    if place.seqno == snap_start:
        snap_end = place.seqno
    if snap_end <= upper:
        return None
    if place.seqno == snap_end:
        snap_start = place.seqno
    return min(upper, snap_start)


class Witness:
    """Follows every partition of a bucket on one connection at a time."""

    def __init__(self, history: History, partitions: int) -> None:
        self.history = history
        self.places = [Place() for _ in range(partitions)]
        self.rollbacks = 0
        self._client: RawClient | None = None
        self._unacknowledged = 0

    def connect(self, address: tuple[str, int], bucket: str) -> None:
        """Open a producer and resume every partition, checking each verdict."""
        asking = RawClient(address, bucket)
        highs = high_seqnos(asking)
        self._client = client = RawClient(address, bucket)
        self._unacknowledged = 0
        flags = (0x21).to_bytes(4, "big")
        opened = client.ask(Opcode.DCP_OPEN, extras=bytes(4) + flags, key=b"witness")
        assert opened.status == Status.SUCCESS
        for name, value in (
            (b"connection_buffer_size", b"%d" % WINDOW_BYTES),
            (b"enable_noop", b"true"),
        ):
            assert client.ask(Opcode.DCP_CONTROL, key=name, value=value).status == 0
        for partition, place in enumerate(self.places):
            server_log = failovers_of(asking.ask(Opcode.GET_FAILOVER_LOG, vbucket=partition).value)
            self._resume(partition, place, server_log, highs[partition])
        asking.close()

    def _resume(self, partition: int, place: Place, log: Failovers, high: int) -> None:
        for _ in range(30):
            wanted = expected_rollback(place, log, high)
            status, value = self._ask_stream(partition, place)
            if status == Status.SUCCESS:
                assert wanted is None, f"partition {partition}: {place} must undo to {wanted}"
                assert failovers_of(value) == log
                place.log = log
                if place.seqno == place.snap_start:
                    place.snap_end = place.seqno  # nothing of that snapshot was received
                return
            assert status == Status.ROLLBACK, f"status 0x{status:x} for {place}"
            seqno = int.from_bytes(value, "big")
            assert seqno == wanted, (
                f"partition {partition}: told to undo to {seqno}, not {wanted}: {place}, {log}"
            )
            self.rollbacks += 1
            place.undo_to(seqno)
        raise AssertionError(f"partition {partition}: rolled back for ever")

    def _ask_stream(self, partition: int, place: Place) -> tuple[int, bytes]:
        assert self._client is not None
        extras = STREAM_EXTRAS.pack(
            0, 0, place.seqno, FOR_EVER, place.uuid if place.seqno else 0,
            place.snap_start, place.snap_end,
        )  # fmt: skip
        opcode = Opcode.DCP_STREAM_REQ
        self._client.send(request(opcode, vbucket=partition, opaque=partition, extras=extras))
        while True:
            packet = self._client.receive()
            if packet.magic == RESPONSE and packet.opcode == opcode:
                return packet.status, packet.value
            self._take(packet)

    def follow_to(self, highs: dict[int, int]) -> None:
        """Read until every partition holds a complete snapshot at or past its high."""
        assert self._client is not None
        waiting = {p for p, high in highs.items() if not self._has(p, high)}
        while waiting:
            packet = self._client.receive()
            self._take(packet)
            if packet.vbucket in waiting and self._has(packet.vbucket, highs[packet.vbucket]):
                waiting.discard(packet.vbucket)

    def follow(self) -> None:
        """Read until the connection breaks."""
        assert self._client is not None
        while True:
            self._take(self._client.receive())

    def close(self) -> None:
        """Leave; `connect` resumes."""
        if self._client is not None:
            self._client.close()

    def _has(self, partition: int, high: int) -> bool:
        place = self.places[partition]
        return place.seqno >= high and place.seqno == place.snap_end

    def _take(self, packet: Packet) -> None:
        assert self._client is not None
        if packet.opcode == Opcode.DCP_NOOP:
            self._client.send(response(Opcode.DCP_NOOP, 0, packet.opaque))
            return
        if packet.magic == RESPONSE:
            return
        self._acknowledge(24 + len(packet.extras) + len(packet.key) + len(packet.value))
        place = self.places[packet.vbucket]
        assert packet.opaque == packet.vbucket
        if packet.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            _on_marker(place, *_PAIR.unpack_from(packet.extras))
        else:
            self._on_change(packet, place)

    def _acknowledge(self, size: int) -> None:
        assert self._client is not None
        self._unacknowledged += size
        if self._unacknowledged > WINDOW_BYTES // 4:
            extras = self._unacknowledged.to_bytes(4, "big")
            self._client.send(request(Opcode.DCP_BUFFER_ACK, extras=extras))
            self._unacknowledged = 0

    def _on_change(self, packet: Packet, place: Place) -> None:
        assert packet.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION), hex(packet.opcode)
        seqno = int.from_bytes(packet.extras[:8], "big")
        assert place.seqno < seqno <= place.snap_end, f"seqno {seqno} does not fit {place}"
        value = packet.value if packet.opcode == Opcode.DCP_MUTATION else None
        content = content_of(packet.key, packet.cas, value)
        if seqno > place.log[-1][1]:
            self.history.note(packet.vbucket, uuid_at(place.log, seqno), seqno, content)
        place.items.append((seqno, content))
        place.seqno = seqno
        if seqno == place.snap_end:
            place.snap_start = seqno
            place.ends.append(seqno)


def _on_marker(place: Place, start: int, end: int) -> None:
    assert start <= end
    assert end >= place.snap_end, f"marker [{start}, {end}] goes back before {place}"
    place.snap_start = place.seqno if start > place.seqno else min(place.snap_start, start)
    place.snap_end = end


def documents_of(
    address: tuple[str, int], bucket: str, partitions: int
) -> list[dict[bytes, tuple[int, Content]]]:
    """Stream a whole bucket from 0 as a reader that knows nothing; one dict per partition."""
    witness = Witness(History(), partitions)
    with RawClient(address, bucket) as asking:
        highs = high_seqnos(asking)
    witness.connect(address, bucket)
    witness.follow_to(highs)
    witness.close()
    return [place.documents() for place in witness.places]


def merged(parts: Iterable[dict[bytes, tuple[int, Content]]]) -> dict[bytes, Content]:
    """Return the newest content of every key of the bucket, deletions included."""
    return {key: content for part in parts for key, (_, content) in part.items()}
