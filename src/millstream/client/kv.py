"""The kv client: documents, counters, bulk writes, positions and leases of one bucket.

    with millstream.connect("127.0.0.1:11210", bucket="orders", user="ann", password=..) as client:
        client.upsert("order::1", {"total": 12})
        print(client.get("order::1").value)

Invariants:
1. A request goes to the node that serves the key's partition by the newest map known.
2. Nothing is written again after a connection broke: the error says so and the caller decides.
3. A client belongs to one thread at a time.

Elsewhere: frames and values (`client.documents`), many requests at once (`client.pipeline`),
ranges of the change stream (`client.bulk`), following it (`millstream.upr.Consumer`).
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NoReturn, Self, TypeVar

from millstream.client.connection import PORT_DEFAULT, TIMEOUT_S, Connection
from millstream.client.documents import (
    Document,
    Durability,
    Key,
    Stored,
    content_of,
    document_from,
    durability_framing,
    get_encoder,
    key_bytes_of,
    stored_from,
    write_encoder,
)
from millstream.client.extensions import (
    LeaseHold,
    LeaseOp,
    PartitionPosition,
    Versioned,
    branch_log_from,
    lease_extras,
    lease_holds_from,
    lease_value,
    partition_list,
    positions_from,
    versioned_from,
)
from millstream.client.pipeline import exchange
from millstream.client.routing import Backoff, Router
from millstream.client.writes import (
    BulkResult,
    Failure,
    OneWrite,
    each_encoder,
    is_done,
    live_cas,
    meta_encoder,
)
from millstream.errors import ConditionError, MillstreamError, UnavailableError, UsageError
from millstream.model.addresses import parse_address
from millstream.model.partitions import partition_of, text_of_key
from millstream.model.position import FailoverLog
from millstream.wire.cluster_map import ClusterMap
from millstream.wire.mcbp import Feature, FrameInfo, Opcode, Packet, Status
from millstream.wire.replies import error_of

AnyKey = TypeVar("AnyKey", bound=Key)

__all__ = ["BulkResult", "Client", "Failure", "connect"]

FAILURES_MAX: Final = 1000
"""Failed items a bulk write tells one by one; with one more it gives up."""
_EXPIRY_NEVER_CREATE: Final = 0xFFFFFFFF
_STORE: Final = Struct(">II")
_COUNT: Final = Struct(">QQI")
_EXPIRY: Final = Struct(">I")
_META_DELETED: Final = Struct(">I")
_U64: Final = Struct(">Q")


def connect(
    address: str | Sequence[str],
    *,
    bucket: str = "default",
    user: str | None = None,
    password: str | None = None,
    timeout_s: float = TIMEOUT_S,
    tls: ssl.SSLContext | None = None,
) -> Client:
    """Connect to a bucket.

    Args:
        address: `HOST:PORT` of a node's kv port, or several separated by commas or in a list.
        bucket: its name.
        user: user name; None on a node without users.
        password: that user's.
        timeout_s: longest wait for an answer, in seconds.
        tls: context of encrypted connections; None for plain.

    Raises:
        UnavailableError: `unreachable`, `timeout`.
        AccessError: `bad_credentials`, `unknown_bucket`.
        UsageError: `bad_address`.
    """
    texts = address.split(",") if isinstance(address, str) else address
    seeds = [parse_address(text, default_port=PORT_DEFAULT) for text in texts]
    router = Router(
        seeds, bucket=bucket, user=user, password=password, timeout_s=timeout_s, tls=tls
    )
    return Client(router)


class Client:
    """A client of one bucket; `connect` makes it."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.reconnect_s = 0.0
        """How long a pipeline goes on asking when no node answers; this client does not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._router.close()

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self._router.bucket

    @property
    def router(self) -> Router:
        """Its connections, for who asks for attachments or reads the stream."""
        return self._router

    @property
    def cluster_map(self) -> ClusterMap:
        """The newest map known."""
        return self._router.map

    def refresh_map(self) -> None:
        """Ask the nodes who serves what by now; UnavailableError if none answers."""
        self._router.refresh_map()

    @property
    def partition_count(self) -> int:
        """Number of partitions of the bucket."""
        return self._router.map.partition_count

    def partition_of(self, key: Key) -> int:
        """Return the partition that owns a key."""
        return partition_of(key_bytes_of(key), self.partition_count)

    # -- reading -----------------------------------------------------------------------------

    def get(self, key: Key) -> Document | None:
        """Return a document; None if there is none."""
        _, packet = self._call(Opcode.GET, key)
        if packet.status == Status.KEY_ENOENT:
            return None
        self._check(packet, "get", key)
        return document_from(packet)

    def get_many(self, keys: Iterable[Key]) -> dict[Key, Document]:
        """Return the documents that exist, by key; pipelined."""
        return dict(self.each(keys))

    def each(self, keys: Iterable[AnyKey]) -> Iterator[tuple[AnyKey, Document]]:
        """Yield what `get_many` returns, one after the other."""
        for key, packet in self._found(keys, Opcode.GET):
            yield key, document_from(packet)

    def exists(self, key: Key) -> bool:
        """Whether there is a document under `key`."""
        _, packet = self._call(Opcode.GET_META, key)
        if packet.status == Status.KEY_ENOENT:
            return False
        self._check(packet, "exists", key)
        return not _META_DELETED.unpack_from(packet.extras)[0]

    def get_versioned(self, key: Key) -> Versioned | None:
        """Return a document or its tombstone with uuid, branch and seqno; None if unknown."""
        _, packet = self._call(Opcode.GET_VERSIONED, key)
        if packet.status == Status.KEY_ENOENT:
            return None
        self._check(packet, "get_versioned", key)
        return versioned_from(packet)

    def get_versioned_many(self, keys: Iterable[Key]) -> dict[Key, Versioned]:
        """Return documents and tombstones that are known, by key; pipelined."""
        found = self._found(keys, Opcode.GET_VERSIONED)
        return {key: versioned_from(packet) for key, packet in found}

    def _found(self, keys: Iterable[AnyKey], opcode: int) -> Iterator[tuple[AnyKey, Packet]]:
        encode = get_encoder(self.partition_count, opcode)
        for item, packet in exchange(self._router, ((key,) for key in keys), encode):
            if packet.status == Status.SUCCESS:
                yield item[0], packet
            elif packet.status != Status.KEY_ENOENT:
                self._fail(packet, "get", item[0])

    # -- writing -----------------------------------------------------------------------------

    def upsert(
        self,
        key: Key,
        value: Any,
        *,
        cas: int = 0,
        expiry: int = 0,
        flags: int | None = None,
        durability: Durability = "memory",
        preserve_expiry: bool = False,
    ) -> Stored:
        """Write a document, whether it exists or not.

        Args:
            key: its key.
            value: bytes, or anything that can be JSON.
            cas: write only if this is still the document's CAS; 0 for always.
            expiry: seconds from now, at most 30 days, or absolute Unix seconds; 0 for never.
            flags: the 32 bits kept with the document; default: the mark of the value's format.
            durability: when the write is acknowledged.
            preserve_expiry: keep the expiry the document has.

        Raises:
            ConditionError: `cas_mismatch`, `not_found` (a CAS was given).
            UsageError: `bad_key`, `bad_value`, `too_large`.
        """
        framing = self._framing(durability, preserve_expiry=preserve_expiry)
        return self._store(Opcode.SET, key, value, cas, expiry, flags, framing)

    def insert(
        self,
        key: Key,
        value: Any,
        *,
        expiry: int = 0,
        flags: int | None = None,
        durability: Durability = "memory",
    ) -> Stored:
        """Write a document that must not exist yet.

        Raises:
            ConditionError: `key_exists`.
        """
        return self._store(Opcode.ADD, key, value, 0, expiry, flags, self._framing(durability))

    def replace(
        self,
        key: Key,
        value: Any,
        *,
        cas: int = 0,
        expiry: int = 0,
        flags: int | None = None,
        durability: Durability = "memory",
        preserve_expiry: bool = False,
    ) -> Stored:
        """Write a document that must exist, with `cas` one that is still the same.

        Raises:
            ConditionError: `not_found`, `cas_mismatch`.
        """
        framing = self._framing(durability, preserve_expiry=preserve_expiry)
        return self._store(Opcode.REPLACE, key, value, cas, expiry, flags, framing)

    def remove(self, key: Key, *, cas: int = 0, durability: Durability = "memory") -> Stored:
        """Delete a document.

        Raises:
            ConditionError: `not_found`, `cas_mismatch`.
        """
        partition_id, packet = self._call(
            Opcode.DELETE, key, cas=cas, framing=self._framing(durability)
        )
        self._check(packet, "remove", key, cas=cas)
        return stored_from(packet, partition_id)

    def touch(self, key: Key, expiry: int) -> Stored:
        """Set the expiry of a document.

        Raises:
            ConditionError: `not_found`.
        """
        partition_id, packet = self._call(Opcode.TOUCH, key, extras=_EXPIRY.pack(expiry))
        self._check(packet, "touch", key)
        return stored_from(packet, partition_id)

    def increment(
        self,
        key: Key,
        delta: int = 1,
        *,
        initial: int | None = None,
        expiry: int = 0,
        durability: Durability = "memory",
    ) -> int:
        """Add to a counter and return its new value.

        Args:
            key: of the counter.
            delta: what to add; a negative one is subtracted, down to 0 at most.
            initial: value of a counter that does not exist; None: that is an error.
            expiry: of a counter created now; as in `upsert`.
            durability: when the write is acknowledged.

        Raises:
            ConditionError: `not_found`, `not_a_number`.
        """
        opcode = Opcode.INCREMENT if delta >= 0 else Opcode.DECREMENT
        life = _EXPIRY_NEVER_CREATE if initial is None else expiry
        extras = _COUNT.pack(abs(delta), initial or 0, life)
        framing = self._framing(durability)
        _, packet = self._call(opcode, key, extras=extras, framing=framing)
        self._check(packet, "increment", key)
        return int(_U64.unpack(packet.value)[0])

    def upsert_many(
        self,
        documents: Mapping[Key, Any] | Iterable[tuple[Key, Any]],
        *,
        expiry: int = 0,
        durability: Durability = "memory",
    ) -> BulkResult:
        """Write many documents, pipelined; as `apply_many`."""
        items = documents.items() if isinstance(documents, Mapping) else documents
        return self.apply_many(items, expiry=expiry, durability=durability)

    def apply_many(
        self,
        changes: Iterable[tuple[Any, ...]],
        *,
        expiry: int = 0,
        durability: Durability = "memory",
    ) -> BulkResult:
        """Write and delete many documents, pipelined.

        Args:
            changes: (key, value, ...); value None deletes, and what is not there is deleted
                already; further members are the caller's, to know failed items by. Of several
                changes of one key the last one counts, as if done in order.
            expiry: of every document written, as in `upsert`.
            durability: when each write is acknowledged.

        Raises:
            MillstreamError: the failure of the item after the first `FAILURES_MAX`.
            UnavailableError: the connection broke: any item may or may not have been done.
        """
        encode = write_encoder(
            self.partition_count,
            expiry=expiry,
            framing=self._framing(durability),
            keep_json=self._keeps_json(),
        )
        done = 0
        failures: list[Failure] = []
        for item, packet in exchange(self._router, changes, encode):
            if packet.status == Status.SUCCESS or (
                item[1] is None and packet.status == Status.KEY_ENOENT
            ):
                done += 1
                continue
            if len(failures) >= FAILURES_MAX:
                self._fail(packet, "write", item[0])
            failures.append(Failure(item, self._error(packet, "write", item[0])))
        return BulkResult(done, failures)

    def write_each(
        self, writes: Iterable[OneWrite], *, durability: Durability = "memory"
    ) -> Iterator[tuple[OneWrite, Stored | MillstreamError]]:
        """Do writes of different kinds, pipelined; yield each with what became of it.

        Raises:
            UnavailableError: the connection broke: what was not yielded may have been done.
        """
        framing = self._framing(durability)
        keeps_json, count = self._keeps_json(), self.partition_count
        encode = each_encoder(count, framing=framing, keep_json=keeps_json)
        for write, packet in exchange(self._router, writes, encode):
            if is_done(write, packet):
                yield write, stored_from(packet, partition_of(write.key, count))
            else:
                yield write, self._error(packet, "write", write.key)

    def cas_many(self, keys: Iterable[bytes]) -> dict[bytes, int]:
        """Return the CAS of the documents that exist, by key; pipelined, without values."""
        found: dict[bytes, int] = {}
        encode = meta_encoder(self.partition_count)
        for item, packet in exchange(self._router, ((key,) for key in keys), encode):
            if packet.status == Status.SUCCESS:
                found[item[0]] = live_cas(packet)
            elif packet.status != Status.KEY_ENOENT:
                self._fail(packet, "get_meta", item[0])
        return {key: cas for key, cas in found.items() if cas}

    # -- history -----------------------------------------------------------------------------

    def positions(self, partition_ids: Sequence[int] | None = None) -> list[PartitionPosition]:
        """Return where partitions stand (all of them by default), by partition.

        Raises:
            UsageError: `not_supported` by a server that is not a Millstream node.
            RoutingError: nobody serves one of them at present.
        """
        wanted = range(self.partition_count) if partition_ids is None else partition_ids
        found: list[PartitionPosition] = []
        for node, mine in self._router.groups(wanted, is_whole=True).items():
            connection = self._extended(self._router.connection_to(node))
            packet = connection.ask(Opcode.POSITIONS, "positions", value=partition_list(mine))
            found.extend(positions_from(packet))
        return sorted(found)

    def wait_persisted(self, timeout_s: float | None = None) -> None:
        """Wait until everything acknowledged so far, to anyone, is persisted.

        Args:
            timeout_s: longest wait in seconds; the client's own by default.

        Raises:
            UnavailableError: `timeout`; `history_lost`: a partition began a new history
                meanwhile, so that acknowledged writes may be gone.
            RoutingError: nobody serves one of the partitions at present.
        """
        backoff = Backoff(self._router.timeout_s if timeout_s is None else timeout_s)
        waiting = {found.partition_id: found for found in self.positions()}
        while waiting:
            for now in self.positions(list(waiting)):
                wanted = waiting[now.partition_id]
                if now.uuid != wanted.uuid:
                    raise UnavailableError(
                        f"partition {now.partition_id} of bucket {self.bucket!r} began a new "
                        f"history: the last writes may be lost; repeat them",
                        code="history_lost",
                    )
                if now.persisted_seqno >= wanted.high_seqno:
                    del waiting[now.partition_id]
            if waiting and not backoff.wait():
                raise UnavailableError(
                    f"bucket {self.bucket!r} did not persist the writes in time; is the disk "
                    f"full or slow?",
                    code="timeout",
                )

    def branch_log(self, partition_id: int) -> FailoverLog:
        """Return the histories of a partition, newest first, with branch numbers."""
        packet = self._router.call(
            partition_id,
            lambda connection: self._extended(connection).request(
                Opcode.BRANCH_LOG, vbucket=partition_id
            ),
        )
        self._check(packet, f"branch log of partition {partition_id}")
        return branch_log_from(packet)

    def open_lease(
        self, wanted: Mapping[int, int | None] | Sequence[int], seconds: int = 0
    ) -> dict[int, LeaseHold]:
        """Keep partitions readable as of a seqno for a while.

        Args:
            wanted: partition -> seqno, None for the present high, `extensions.DURABLE_MARK` for
                the newest mark that nothing takes away; or a list for the highs.
            seconds: how long; 0 for the node's default of 600.

        Returns:
            What is held, by partition; lease ids differ from node to node. A partition asked for
            as of its durable mark is left out if it has none.

        Raises:
            StreamError: `lease_lost`: a seqno that cannot be read (any more).
            RoutingError: nobody serves one of the partitions at present.
        """
        asked = wanted if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
        held: dict[int, LeaseHold] = {}
        for packet in self._lease(LeaseOp.OPEN, 0, asked, seconds):
            self._check(packet, "opening a lease")
            held.update((hold.partition_id, hold) for hold in lease_holds_from(packet))
        return held

    def renew_lease(
        self, lease_id: int, partition_ids: Sequence[int], seconds: int = 0
    ) -> dict[int, LeaseHold]:
        """Prolong a lease for some of its partitions; return those still held, perhaps none."""
        held: dict[int, LeaseHold] = {}
        asked = dict.fromkeys(partition_ids)
        for packet in self._lease(LeaseOp.RENEW, lease_id, asked, seconds):
            if packet.status != Status.LEASE_LOST:
                self._check(packet, f"renewing lease {lease_id}")
                held.update((hold.partition_id, hold) for hold in lease_holds_from(packet))
        return held

    def release_lease(self, lease_id: int, partition_ids: Sequence[int]) -> None:
        """Give up a lease for some of its partitions; harmless if it is not held."""
        asked = dict.fromkeys(partition_ids)
        for packet in self._lease(LeaseOp.RELEASE, lease_id, asked, 0):
            if packet.status != Status.LEASE_LOST:
                self._check(packet, f"releasing lease {lease_id}")

    # -- private -----------------------------------------------------------------------------

    def _lease(
        self, operation: LeaseOp, lease_id: int, asked: Mapping[int, int | None], seconds: int
    ) -> Iterator[Packet]:
        is_whole = operation == LeaseOp.OPEN
        for node, mine in self._router.groups(list(asked), is_whole=is_whole).items():
            yield self._extended(self._router.connection_to(node)).request(
                Opcode.LEASE,
                extras=lease_extras(operation, lease_id, seconds),
                value=lease_value({partition_id: asked[partition_id] for partition_id in mine}),
            )

    def _store(
        self,
        opcode: int,
        key: Key,
        value: Any,
        cas: int,
        expiry: int,
        flags: int | None,
        framing: bytes,
    ) -> Stored:
        data, format_flags, datatype = content_of(value)
        partition_id, packet = self._call(
            opcode, key, cas=cas, datatype=datatype if self._keeps_json() else 0, framing=framing,
            extras=_STORE.pack(format_flags if flags is None else flags, expiry), value=data,
        )  # fmt: skip
        self._check(packet, "write", key, cas=cas)
        return stored_from(packet, partition_id)

    def _call(
        self,
        opcode: int,
        key: Key,
        *,
        cas: int = 0,
        datatype: int = 0,
        framing: bytes = b"",
        extras: bytes = b"",
        value: bytes = b"",
    ) -> tuple[int, Packet]:
        raw = key_bytes_of(key)
        partition_id = partition_of(raw, self.partition_count)
        return partition_id, self._router.call(
            partition_id,
            lambda connection: connection.request(
                opcode, vbucket=partition_id, cas=cas, datatype=datatype,
                framing=framing, extras=extras, key=raw, value=value,
            ),
        )  # fmt: skip

    def _framing(self, durability: Durability, *, preserve_expiry: bool = False) -> bytes:
        framing = durability_framing(durability, self._router.timeout_s)
        return framing + bytes([FrameInfo.PRESERVE_TTL << 4]) if preserve_expiry else framing

    def _keeps_json(self) -> bool:
        """Whether the node may be told that a value is JSON (the same on all nodes)."""
        return Feature.JSON in self._router.features

    def _extended(self, connection: Connection) -> Connection:
        if not connection.is_extended:
            raise UsageError(
                f"{connection.address} is not a Millstream node: it has no leases",
                code="not_supported",
            )
        return connection

    def _check(self, packet: Packet, verb: str, key: Key | None = None, *, cas: int = 0) -> None:
        if packet.status == Status.SUCCESS:
            return
        if cas and packet.status == Status.KEY_EEXISTS:
            raise ConditionError(
                f"{self._what(verb, key)}: the document was changed since its CAS was read; "
                "read it again",
                code="cas_mismatch",
            )
        self._fail(packet, verb, key)

    def _fail(self, packet: Packet, verb: str, key: Key | None) -> NoReturn:
        raise self._error(packet, verb, key)

    def _error(self, packet: Packet, verb: str, key: Key | None) -> MillstreamError:
        address = ",".join(f"{host}:{port}" for host, port in self._router.map.nodes[:3])
        return error_of(packet, address=address, what=self._what(verb, key))

    def _what(self, verb: str, key: Key | None) -> str:
        if key is None:
            return f"{verb} in bucket {self.bucket!r}"
        return f"{verb} {text_of_key(key_bytes_of(key))!r} in bucket {self.bucket!r}"
