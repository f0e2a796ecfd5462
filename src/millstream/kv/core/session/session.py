"""One client connection of the kv and memcached ports, without its socket.

Bytes in by `receive`, bytes out by `take_output`. Plain requests have short ways
(`plain_requests`); a table of commands answers everything else. All replies of one wake-up are
written together.

Invariants:
1. Replies leave in request order. While a durable write waits for disk or copies, later replies
   wait. A request whose document is on the disk is retried once that was read, and a write that
   finds memory full once there is room; no later request is answered before.
2. One wake-up answers at most `REQUESTS_PER_WAKEUP_MAX` requests, each KiB of reply counted as one
   more, and a command of the table as `OTHER_COST` more, or what `COSTS` says. The rest waits for
   the next wake-up, which comes once the client has read.
3. A malformed frame closes the connection, and so does a byte that begins no frame. A frame longer
   than the limit is answered E2BIG, and its body is skipped, not stored.
4. A document command is answered only with a bucket selected and the right it needs.

Elsewhere: other requests (`requests`), durable writes (`kv.core.copies.durability`), document
commands (`document_commands`), log-in (`handshake`), statistics, positions and leases
(`introspection`), the socket (`kv.aio.server`).

Source: memcached binary protocol; docs/reference/wire/.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from millstream import accelerated
from millstream.errors import RemoteProtocolError
from millstream.kv.core.copies import durability
from millstream.kv.core.partition.departed import Departed
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.partition import Partition, absolute_expiry
from millstream.kv.core.partition.residents import NoRoomYet, NotInMemory, Residents
from millstream.kv.core.queue.entry import ENTRY_BYTES, Entry, size_of
from millstream.kv.core.queue.mutation_queue import Block, MutationQueue
from millstream.kv.core.session.plain_requests import (
    PLAIN_WAYS,
    READS,
    SECOND_NS,
    Head,
    delete_plain,
    read_plain,
    store_durably,
    store_plain,
    stored_reply,
)
from millstream.kv.core.session.requests import (
    MAGICS,
    ORDINARY,
    cut_request,
    durability_of,
    is_too_large,
    is_waited_for,
    not_binary,
)
from millstream.model.limits import (
    KEY_BYTES_MAX,
    NOTED_BYTES_MIN,
    REQUESTS_PER_WAKEUP_MAX,
    VALUE_BYTES_MAX,
)
from millstream.wire.mcbp import (
    ALT_REQUEST,
    HEADER_BYTES,
    REQUEST,
    RESPONSE,
    Datatype,
    Feature,
    Opcode,
    Packet,
    Status,
    response,
)

if TYPE_CHECKING:
    from millstream.access.users import ScramServer, User
    from millstream.kv.core.bucket import Bucket
    from millstream.kv.core.session.host import Host, StreamPort

__all__ = ["DEFERRED_BYTES_MAX", "DEFERRED_MAX", "Command", "KvSession"]

OTHER_COST: Final = 3
"""A request that the table of commands answers counts as so many more."""
COSTS: Final[dict[int, int]] = {
    Opcode.DCP_STREAM_REQ: 15,
    **dict.fromkeys(
        (
            Opcode.STAT,
            Opcode.POSITIONS,
            Opcode.GET_ALL_VB_SEQNOS,
            Opcode.LEASE,
            Opcode.OBSERVE,
            Opcode.GET_RANDOM_KEY,
        ),
        REQUESTS_PER_WAKEUP_MAX,
    ),
}
"""The same for requests that cost more: those that look at many things are a wake-up each."""
DEFERRED_MAX: Final = 10_000
"""Replies waiting behind a durable write above which no further request is read."""
DEFERRED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of such replies; one wake-up may exceed it."""

_cut_head = Struct(">HHHHI4sQ").unpack_from
"""See `Head`."""

Command = Callable[["KvSession", Packet, int], bytes | None]
"""Answers one request: (session, packet, now in Unix ns) -> reply, None for no reply (yet)."""


class KvSession:
    """State of one connection and the loop over its requests."""

    __slots__ = (
        "_deferred", "_deferred_bytes", "_has_rest", "_missing_bytes", "_open_partitions",
        "_open_tables", "_pieces", "_read_partitions", "_reads", "_rest", "_skipped_bytes",
        "_write_partitions", "absent", "bucket", "client_name", "commands", "datatype_mask",
        "features", "has_changes", "hashes_keys", "host", "is_closing", "is_waiting",
        "needs_care", "open_commands", "out", "password_reply", "peer", "scram", "source",
        "stream", "user", "waits_for_room", "wants_tokens",
    )  # fmt: skip

    def __init__(
        self,
        host: Host[KvSession],
        commands: Mapping[int, Command],
        *,
        open_commands: frozenset[int],
        hashes_keys: bool,
        peer: str,
        source: str = "",
    ) -> None:
        self.host = host
        self.peer = peer
        self.source = source
        """Address without the port; failed log-ins are counted by it."""
        self.commands = commands
        self.open_commands = open_commands
        """Commands answered before a log-in, if there are users."""
        self.hashes_keys = hashes_keys
        """The server chooses the partition: the plain memcached port."""
        self.bucket: Bucket | None = None
        self.user: User | None = None
        self.scram: ScramServer | None = None
        self.password_reply: Callable[[User | None], bytes] | None = None
        self.features: frozenset[int] = frozenset()
        self.client_name = ""
        self.datatype_mask = 0
        self.wants_tokens = False
        self.stream: StreamPort | None = None
        self.is_closing = False
        self.is_waiting = False
        """A log-in is being checked, a document read, or all documents deleted: requests wait."""
        self.absent: NotInMemory | None = None
        """What the next request waits for; the shell takes it and calls `on_fetched`."""
        self.waits_for_room = False
        """The next request writes and memory is full; the shell calls `on_room` after that."""
        self.has_changes = False
        self.needs_care = False
        """More is to be done than to write the output and notify of changes; the shell clears
        it."""
        self.out: list[bytes] = []
        self._deferred: deque[bytes | durability.PersistedWait | durability.Waiting] = deque()
        self._deferred_bytes = 0
        self._rest = b""
        self._pieces = bytearray()
        self._missing_bytes = 0
        self._skipped_bytes = 0  # of a too long body: still to come
        self._has_rest = False
        self._open_tables: list[dict[bytes, Entry]] = []
        self._open_partitions: list[Partition | None] = []
        self._read_partitions: list[Partition] = []
        self._reads = [0]
        self._write_partitions: list[Partition] = []

    # -- rights

    def select(self, bucket: Bucket | None) -> None:
        """Use a bucket from now on, within the user's rights."""
        self._tell_changed()
        self.bucket = bucket
        self._reads = bucket.reads if bucket else [0]
        self._read_partitions, self._open_tables = (
            (bucket.partitions, bucket.open_tables) if bucket and self.may("read") else ([], [])
        )
        self._write_partitions, self._open_partitions = (
            (bucket.partitions, bucket.open_partitions)
            if bucket and self.may("write")
            else ([], [])
        )

    def _tell_changed(self) -> None:
        """Notify of changes made in the selected bucket."""
        if self.has_changes and self.bucket is not None:
            self.has_changes = False
            if not self.bucket.is_told_soon:
                self.host.tell_changed(self.bucket)

    def may(self, right: str) -> bool:
        """Return whether the user has a right in the selected bucket."""
        users = self.host.users
        if self.hashes_keys:
            return right in ("read", "write")
        if users.is_empty:
            return True
        if self.user is None:
            return False
        return self.user.may(right, self.bucket.name if self.bucket else "")  # type: ignore[arg-type]

    @property
    def knows_lock_statuses(self) -> bool:
        """Return whether HELLO granted the newer statuses; other clients get older ones."""
        return Feature.XERROR in self.features

    @property
    def is_logged_in(self) -> bool:
        """Return whether requests that need no bucket may be answered."""
        return self.user is not None or self.host.users.is_empty or self.hashes_keys

    # -- bytes in

    @property
    def pending_bytes(self) -> int:
        """Return the bytes received and not yet parsed as whole requests, or not yet answered."""
        return len(self._rest) + len(self._pieces)

    @property
    def is_clogged(self) -> bool:
        """Return whether reading must stop until replies have left."""
        return (
            self.is_waiting
            or len(self._deferred) >= DEFERRED_MAX
            or self._deferred_bytes >= DEFERRED_BYTES_MAX
        )

    def receive(
        self, data: bytes, now_ns: int, at: int = 0, budget: int = REQUESTS_PER_WAKEUP_MAX
    ) -> bytes:
        """Answer the whole requests in what was kept and `data`; return what to write now.

        `needs_care` says afterwards whether anything but that write is to be done. What is before
        `at` was answered already, into `out`; `budget` is left of this wake-up.

        Raises:
            RemoteProtocolError: the connection must be closed, after the output was written.
        """
        if self._has_rest:
            if self._skipped_bytes:
                return self._skip(data, now_ns)
            if self._missing_bytes > len(data):  # a long value comes in many pieces
                self._pieces += data
                self._missing_bytes -= len(data)
                self.needs_care |= self.pending_bytes >= NOTED_BYTES_MIN
                return b""
            data = b"".join((self._rest, self._pieces, data))
            self._pieces.clear()
            self._rest, self._missing_bytes, self._has_rest = b"", 0, False
            return self.receive(data, now_ns)  # compiled, where there is an accelerator
        if (self._deferred or self.is_waiting or self.is_closing) and (
            self.is_closing or self.is_clogged
        ):
            self._keep(data[at:])
            return b""
        try:
            at = self._answer(data, at, budget, now_ns)
        finally:
            if at != len(data):
                self._keep(data[at:])
            elif self._skipped_bytes:
                self._has_rest = True
            if self.has_changes:
                self._tell_changed()
        out = self.out
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        return data

    def _keep(self, rest: bytes) -> None:
        """Keep the rest for the next wake-up."""
        self._rest, self._has_rest = rest, bool(rest)
        if len(rest) >= HEADER_BYTES:
            missing = HEADER_BYTES + int.from_bytes(rest[8:12], "big") - len(rest)
            self._missing_bytes = max(0, missing)
            self.needs_care |= missing <= 0 or len(rest) >= NOTED_BYTES_MIN

    @property
    def has_request(self) -> bool:
        """Return whether a whole request waits to be answered."""
        return len(self._rest) >= HEADER_BYTES and not self._missing_bytes

    def _answer(self, data: bytes, at: int, budget: int, now_ns: int) -> int:
        """The request loop; returns how many bytes were used. Hot path: few calls."""
        deferred = self._deferred
        out = [] if deferred else self.out
        last = len(data) - HEADER_BYTES
        while at <= last and budget > 0:
            head = _cut_head(data, at)
            stop = at + HEADER_BYTES + head[4]
            if stop > len(data):
                if not is_waited_for(head[0] >> 8, head[4], is_logged_in=self.is_logged_in):
                    out.append(self._refusal_of_size(head))
                    self._skipped_bytes, at = stop - len(data), len(data)
                break
            budget -= 1
            way, reply = PLAIN_WAYS.get(head[0]), None
            try:
                if way is not None:
                    reply = way(self, data, at, head, now_ns)
                if reply is None:
                    self.needs_care = True
                    if deferred and out:
                        self.emit(b"".join(out))
                        out.clear()
                    budget -= self._answer_other(data, at, stop, now_ns) >> 10
            except NotInMemory as absent:
                self._wait_for_document(absent)
                break
            except NoRoomYet:
                self.waits_for_room = self.is_waiting = True
                break
            at = stop
            if reply is not None:
                self._reads[0] += way is read_plain
                if reply:
                    out.append(reply)
                    budget -= len(reply) >> 10
                continue
            out = [] if deferred else self.out
            if self.is_closing or self.is_clogged:
                break
        if deferred and out:
            self.emit(b"".join(out))
        if at < len(data) and data[at] not in MAGICS:
            raise not_binary(data[at])
        return at

    def _refusal_of_size(self, head: Head) -> bytes:
        """Return the reply to a frame that is longer than the limit."""
        kind, _, _, vbucket, _, opaque, cas = head
        packet = Packet(kind >> 8, kind & 0xFF, 0, vbucket, int.from_bytes(opaque, "big"),
                        cas, b"", b"", b"", b"")  # fmt: skip
        return self.refusal(packet, Status.E2BIG)

    def _skip(self, data: bytes, now_ns: int) -> bytes:
        """Skip the rest of a too long body, then continue."""
        skipped = min(self._skipped_bytes, len(data))
        self._skipped_bytes -= skipped
        self._has_rest = self._skipped_bytes > 0
        return b"" if self._has_rest else self.receive(data[skipped:], now_ns)

    # -- the other commands

    def _answer_other(self, data: bytes, at: int, stop: int, now_ns: int) -> int:
        """Answer one request by the table of commands; return the bytes that it counts as."""
        if store_durably(self, data, at, stop, now_ns):
            return 0
        packet = cut_request(data, at, stop)
        if packet.magic not in (REQUEST, ALT_REQUEST):
            if self.stream is not None and packet.magic == RESPONSE:
                self.stream.on_packet(packet)
                return 0
            raise RemoteProtocolError(f"magic 0x{packet.magic:02x}", code="bad_magic")
        command = self.commands.get(packet.opcode)
        status: Status | None = None
        level = patience_ms = 0
        if command is None:
            status = Status.UNKNOWN_COMMAND
        elif not self.is_logged_in and packet.opcode not in self.open_commands:
            status = Status.EACCESS
        elif is_too_large(packet):
            status = Status.E2BIG
        elif packet.framing:
            status, level, patience_ms = durability_of(packet)
            status = status or self._refusal_of_level(packet, level, now_ns)
        if status is not None or command is None:
            reply: bytes | None = self.refusal(packet, status or Status.UNKNOWN_COMMAND)
        else:
            reply = command(self, packet, now_ns)
            if packet.opcode in READS:
                self._reads[0] += 1
        if reply is None:
            return COSTS.get(packet.opcode, OTHER_COST) << 10
        if level and reply[6:8] == b"\0\0":
            self._reply_durably(packet, reply, level, patience_ms, now_ns)
        else:
            self.emit(reply)
        return len(reply) + (COSTS.get(packet.opcode, OTHER_COST) << 10)

    def _refusal_of_level(self, packet: Packet, level: int, now_ns: int) -> Status | None:
        found = self.partition_of(packet, for_write=True) if level else None
        if not isinstance(found, Partition):
            return None
        return durability.refusal_of(found, level, now_ns)

    def _reply_durably(
        self, packet: Packet, reply: bytes, level: int, patience_ms: int, now_ns: int
    ) -> None:
        """Answer a change that was just made once it has reached its level."""
        bucket = self.bucket
        assert bucket is not None
        partition = bucket.partitions[self._number_of(packet)]  # memory may be full: not checked
        if not durability.waits_for_copies_or_disk(partition, level):
            self.emit(reply)
            return
        wait_ns = patience_ms * 1_000_000 or durability.DURABLE_WAIT_S_DEFAULT * SECOND_NS
        self._deferred.append(
            durability.Waiting(
                partition, partition.high_seqno, reply, partition.epoch, level,
                now_ns, now_ns + wait_ns,
            )
        )  # fmt: skip
        if level == durability.PERSISTED_ON_MAJORITY:
            partition.awaited_seqno = partition.high_seqno
        if level != durability.MAJORITY:
            bucket.hurry()

    def partition_of(self, packet: Packet, *, for_write: bool = False) -> Partition | Status:
        """Return the partition of a document command, or the status that refuses it.

        Raises:
            NoRoomYet: it is a write, and memory is full.
        """
        if self.bucket is None:
            return Status.NO_BUCKET if self.is_logged_in else Status.EACCESS
        partitions = self._write_partitions if for_write else self._read_partitions
        if not partitions:
            return Status.EACCESS
        vbucket = self._number_of(packet)
        if vbucket >= len(partitions):
            return Status.NOT_MY_VBUCKET
        partition = partitions[vbucket]
        refusal = partition.refusal
        if refusal is None and for_write:
            if self.bucket.writes.refuses(vbucket):
                return Status.ETMPFAIL
            if self.bucket.writes.is_delaying:
                raise NoRoomYet
        return partition if refusal is None else refusal

    def _number_of(self, packet: Packet) -> int:
        if self.hashes_keys and self.bucket is not None:
            return (crc32(packet.key) >> 16 & 0x7FFF) % self.bucket.partition_count
        return packet.vbucket

    # -- bytes out

    def refusal(self, packet: Packet, status: Status) -> bytes:
        """Return an error reply; "not my partition" contains the current map."""
        if status in (Status.LOCKED, Status.NOT_LOCKED) and not self.knows_lock_statuses:
            is_about_locks = packet.opcode in (Opcode.GET_LOCKED, Opcode.UNLOCK)
            status = Status.ETMPFAIL if is_about_locks else Status.KEY_EEXISTS
        if self.bucket is not None and status not in ORDINARY:
            refused, name = self.bucket.refused, status.name.lower()
            refused[name] = refused.get(name, 0) + 1
        if status == Status.NOT_MY_VBUCKET:
            return response(
                packet.opcode, status, packet.opaque,
                datatype=Datatype.JSON, value=self.host.config(self.bucket),
            )  # fmt: skip
        return response(packet.opcode, status, packet.opaque)

    def emit(self, data: bytes) -> None:
        """Send bytes in their turn."""
        if self._deferred:
            self._deferred.append(data)
            self._deferred_bytes += len(data)
        else:
            self.out.append(data)

    @property
    def held_bytes(self) -> int:
        """Return the bytes held for the client: requests, and replies that wait for the disk."""
        return len(self._rest) + len(self._pieces) + self._deferred_bytes

    @property
    def waits_for_disk(self) -> bool:
        """Return whether `on_persisted` has something to release."""
        return bool(self._deferred)

    def on_persisted(self, now_ns: int) -> None:
        """Release the replies whose writes have reached their level, or never will."""
        deferred = self._deferred
        while deferred:
            head = deferred[0]
            if isinstance(head, tuple):
                reply = durability.answer_of(head, now_ns)
                if reply is None:
                    return
            else:
                reply = head
                self._deferred_bytes -= len(reply)
            self.out.append(reply)
            deferred.popleft()

    def take_output(self) -> bytes:
        """Return the bytes to write now."""
        out = self.out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    # -- waiting

    def _wait_for_document(self, absent: NotInMemory) -> None:
        """Retry the current request once a document was read."""
        self.absent = absent
        self.is_waiting = self.needs_care = True

    def on_fetched(self) -> None:
        """The document is there: the next `receive` answers the request."""
        self.is_waiting = False

    def on_room(self) -> None:
        """Writes are accepted again, or refused: the next `receive` answers the request."""
        self.waits_for_room = self.is_waiting = False

    def on_fetch_refused(self) -> None:
        """Too many documents are being read: answer the request with a temporary failure."""
        rest = self._rest
        stop = HEADER_BYTES + int.from_bytes(rest[8:12], "big")
        packet = cut_request(rest, 0, stop)
        self._keep(rest[stop:])
        self.is_waiting = False
        self.emit(self.refusal(packet, Status.ETMPFAIL))

    def wait_for_reply(self, start: Callable[[Callable[[bytes], None]], None]) -> None:
        """Start an operation that calls back with a reply; until then requests wait."""

        def done(reply: bytes) -> None:
            self.is_waiting = False
            if reply:
                self.emit(reply)

        self.is_waiting = True
        start(done)

    def on_password_checked(self, user: User | None) -> None:
        """Result of `Host.check_password`: answer the request."""
        self.is_waiting = False
        answer, self.password_reply = self.password_reply, None
        assert answer is not None
        self.emit(answer(user))


accelerated.bind(
    KvSession, "receive", Partition, MutationQueue, Block, Entry, Residents, Departed, Memory,
    REQUESTS_PER_WAKEUP_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX, ENTRY_BYTES, DEFERRED_MAX,
    DEFERRED_BYTES_MAX, also=(
        KvSession._answer, read_plain, delete_plain, store_plain, stored_reply, store_durably,
        Partition.store, Partition.delete, Partition._bury, absolute_expiry, Block.append,
        Block._widen, Residents.add, Residents._take, Residents.lacks, Departed.may_have,
        size_of),
)  # fmt: skip
