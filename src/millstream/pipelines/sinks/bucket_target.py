"""Another bucket as the store of a pipeline: the same documents, with flags and expiry.

    target = BucketTarget({"hosts": "127.0.0.1:11210", "bucket": "copy"})

Everything in the bucket belongs to the pipeline, but for keys that begin with `_millstream:` (its
companions are there, see `sinks.companions`), `_millstream/`, `_design/` and `_local/`: a load
that is swept removes what else it finds.

Invariants:
1. Companions are durable before documents are written; a batch has ended only when everything that
   it wrote or found is persisted on a majority of the copies, of partitions that have an owner, in
   the history in which it was written. Else it comes again.
   One query writes a bucket under a name (`sinks.batch_order`); the head of partition -1 names it.
2. A sweep is over, in the head, only after what it removes is removed, durably.
3. Keys that begin so are not copied either: they are somebody's companions, or belong to a bucket.

Elsewhere: which rows (`sinks.repairing`), the wait for the copies (`sinks.writing`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from typing import Final, TypeVar

import msgspec

from millstream.client.bulk import Range
from millstream.client.columns import OP_PUT, Columns, cut_columns
from millstream.client.kv import Client
from millstream.client.writes import Write
from millstream.errors import CorruptionError, MillstreamError, UnavailableError, UsageError
from millstream.model.partitions import key_from_text, partition_of
from millstream.model.position import Position
from millstream.pipelines.change_stream.control import open_again
from millstream.pipelines.change_stream.options import SourceOptions, parse_options
from millstream.pipelines.change_stream.reading import NodeRanges
from millstream.pipelines.sinks.batch_order import Writer, next_writer
from millstream.pipelines.sinks.companions import COMPANION_PREFIX, Ring, chunk_key, head_key
from millstream.pipelines.sinks.repairing import WHOLE, Row, StoredVersion
from millstream.pipelines.sinks.writing import Persistence
from millstream.upr.core.repair import LoadState
from millstream.wire.mcbp import Datatype

__all__ = ["BucketTarget", "live_keys"]

Content = TypeVar("Content")
_JSON: Final = int(Datatype.JSON)
_NOT_OURS: Final = (COMPANION_PREFIX, "_millstream/", "_design/", "_local/")


class BucketTarget:
    """A `repairing.KeyedTarget` over the kv port.

    Args:
        options: hosts, bucket, user and password as for the source.
        name: of this sink, in the keys of its companions; of the letters a key may have.

    Raises:
        UsageError: `bad_option`, `unknown_option`.
        UnavailableError, AccessError: as `millstream.connect`.
    """

    def __init__(self, options: Mapping[str, str], name: str = "sink") -> None:
        self._given = dict(options)
        self._options = parse_options(options)
        self._name = name
        self._client: Client = open_again(self._options)
        self._count = 1
        self._persistence: Persistence | None = None
        self._rings: dict[int, Ring] = {}
        self._states: dict[int, LoadState] = {}
        self._writer: Writer | None = None
        self._changes: dict[str, Write] = {}
        self._kept: dict[int, Callable[[], AbstractSet[str]]] = {}
        """Partitions of which other keys are removed at the end of the batch."""
        self._loads_ended: set[int] = set()
        self._is_unfinished = False

    def __reduce__(self) -> tuple[type[BucketTarget], tuple[dict[str, str], str]]:
        """Connect anew, where Spark Connect brings it to."""
        return type(self), (self._given, self._name)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    # -- see `KeyedTarget` -------------------------------------------------------------------

    def enter(self, batch_id: int, query_id: str) -> None:
        """Refuse a batch that cannot be the next one."""
        self._writer = next_writer(
            self._rings[WHOLE].writer,
            Writer(batch_id, query_id),
            f"bucket {self._options.bucket!r} (as {self._name!r})",
            "begin with a new checkpoint and an empty bucket, or another one",
        )

    def begin(self, partitions: Collection[int], partition_count: int) -> None:
        """Read the companions of these partitions."""
        if self._is_unfinished:  # the batch before failed: partitions may be elsewhere by now
            with suppress(UnavailableError):
                self._client.refresh_map()
        self._is_unfinished = True
        self._count = partition_count
        self._persistence = Persistence(self._client)
        # Companions that are found, and keys that a sweep does not find, count on all of them.
        self._persistence.touched.update(self._persistence.partition_ids)
        self._changes, self._kept, self._loads_ended = {}, {}, set()
        self._writer = None
        self._rings = self._read_rings(partitions)
        self._states = {p: ring.state for p, ring in self._rings.items() if ring.state is not None}

    def state(self, partition: int) -> LoadState | None:
        """Return what was set last."""
        return self._states.get(partition)

    def set_state(self, partition: int, state: LoadState) -> None:
        """Remember the state."""
        self._states[partition] = state

    def versions(self, partition: int, keys: Collection[str]) -> Mapping[str, StoredVersion]:
        """Return the versions of keys that are in the ring; others are at or below the floor."""
        return self._rings[partition].newest(keys)

    def keys_above(self, partition: int, branch: int, seqno: int) -> Collection[str]:
        """Return the keys with an entry of a lower branch and a higher seqno."""
        return self._rings[partition].keys_above(branch, seqno)

    def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
        """Write documents and deletions with the batch.

        Raises:
            UsageError: `bad_schema`: a document has no value.
        """
        mine = [row for row in rows if not row.key.startswith(_NOT_OURS)]
        for row in mine:
            if row.value is None and not row.is_deleted:
                raise UsageError(
                    f"document {row.key!r} has no value: a bucket is given whole documents, so "
                    "read the stream with its values (without noValue) and keep column value",
                    code="bad_schema",
                )
        self._rings[partition].add(
            [
                StoredVersion(partition, row.branch, row.seqno, row.key, row.is_deleted, load)
                for row in mine
            ]
        )
        for row in mine:
            key = key_from_text(row.key)
            self._changes[row.key] = (
                Write(key, None)
                if row.is_deleted
                else Write(key, row.value, row.flags, row.datatype & _JSON, row.expiry)
            )

    def sweep(self, partition: int, load: int) -> None:
        """Remove, with the batch, what this load did not bring."""
        ring = self._rings[partition]
        self._kept[partition] = lambda: ring.keys_of_load(load)
        self._loads_ended.add(partition)

    def retain(self, partition: int, keys: AbstractSet[str]) -> None:
        """Remove, with the batch, all keys but these."""
        self._kept[partition] = lambda: keys

    def drop_tombstones(self, partition: int, seqno: int) -> int:
        """Delete entries at or below these positions: their documents need no more repair."""
        return self._rings[partition].drop(seqno)

    def commit(self, batch_id: int) -> None:
        """Write companions, then documents; durable on return.

        Raises:
            UnavailableError: `history_lost`, `timeout`, `partition_inactive`, and others of the
                client: the batch has to come again.
        """
        left = [
            Write(chunk_key(self._name, p, chunk).encode(), None)
            for p, ring in self._rings.items()
            for chunk in ring.left
        ]
        if left:  # gone for good before a head is written that no longer names them
            self._write(left)
            self._wait()
        unfinished = {
            p: state._replace(is_loading=True)
            for p, state in self._states.items()
            if p in self._loads_ended
        }
        self._write_heads(self._states | unfinished)
        kept = {p: keys() for p, keys in self._kept.items()}
        gone = [Write(key, None) for key in self._keys_but(kept)]
        self._write([*gone, *self._changes.values(), *self._stale_chunks()])
        self._wait()
        if unfinished:
            self._write_heads(self._states)
            self._wait()
        self._is_unfinished = False

    # -- private -----------------------------------------------------------------------------

    def _write(self, writes: Sequence[Write]) -> None:
        assert self._persistence is not None, "begin comes first"
        for write, done in self._client.write_each(writes):
            if isinstance(done, MillstreamError):
                raise done
            self._persistence.touched.add(self._client.partition_of(write.key))

    def _wait(self) -> None:
        """Wait until all is durable, in the histories in which the batch began."""
        assert self._persistence is not None, "begin comes first"
        self._persistence.wait()

    def _read_rings(self, partitions: Collection[int]) -> dict[int, Ring]:
        names = {head_key(self._name, p): p for p in partitions}
        heads = {
            names[key]: self._decoded(key, Ring.decode, found.data)
            for key, found in self._client.get_many(names).items()
            if isinstance(key, str)
        }
        wanted = {
            chunk_key(self._name, p, chunk): p
            for p, head in heads.items()
            for chunk in head.chunks
        }
        chunks = self._client.get_many(wanted)
        entries: dict[int, list[StoredVersion]] = {}
        for key, p in wanted.items():
            if key not in chunks:
                raise self._damaged(key, "it is not there")
            found = self._decoded(key, Ring.decode_chunk, chunks[key].data)
            entries.setdefault(p, []).extend(found)
        return {p: Ring(heads.get(p), entries.get(p, ())) for p in partitions}

    def _decoded(self, key: str, decode: Callable[[bytes], Content], data: bytes) -> Content:
        try:
            return decode(data)
        except msgspec.DecodeError as error:
            raise self._damaged(key, str(error)) from error

    def _damaged(self, key: str, reason: str) -> CorruptionError:
        return CorruptionError(
            f"companion {key!r} of bucket {self._options.bucket!r} cannot be read: {reason}. "
            "Begin again with an empty bucket and a new checkpoint",
            code="damaged",
        )

    def _write_heads(self, states: Mapping[int, LoadState]) -> None:
        """Make entries durable: chunks first, then the heads that name them."""
        heads: list[tuple[str, bytes]] = []
        chunks: list[tuple[str, bytes]] = []
        for p in sorted(self._rings, reverse=True):  # the bucket as a whole comes last
            ring = self._rings[p]
            if p == WHOLE and (heads or self._changes):
                ring.writer = self._writer
            head, added = ring.encode(states.get(p, LoadState()))
            chunks += [(chunk_key(self._name, p, n), body) for n, body in added.items()]
            if head is not None:
                heads.append((head_key(self._name, p), head))
        for documents in (chunks, heads):
            if documents:
                self._client.upsert_many(documents, durability="persisted").raise_first()

    def _stale_chunks(self) -> list[Write]:
        return [
            Write(chunk_key(self._name, p, chunk).encode(), None)
            for p, ring in self._rings.items()
            for chunk in ring.stale
        ]

    def _keys_but(self, kept: Mapping[int, AbstractSet[str]]) -> Iterator[bytes]:
        """Yield the keys of some partitions of the source that are in the bucket but not kept."""
        if not kept:
            return
        highs = {at.partition_id: at.high_seqno for at in self._client.positions()}
        if len(highs) < self._client.partition_count:
            raise UnavailableError(
                f"no node serves some partitions of bucket {self._options.bucket!r} now: "
                f"documents to be removed cannot be found",
                code="partition_inactive",
            )
        for key in live_keys(self._options, highs):
            raw = key_from_text(key)
            found = kept.get(partition_of(raw, self._count))
            if found is not None and key not in found and not key.startswith(_NOT_OURS):
                yield raw


def live_keys(options: SourceOptions, highs: Mapping[int, int]) -> Iterator[str]:
    """Yield the keys of the documents that a bucket has; `highs`: partition -> high seqno."""
    ranges = [Range(p, Position(), high) for p, high in highs.items() if high]
    with closing(NodeRanges(options, with_values=False)) as source:
        for chunk in source.stream(ranges):
            columns = Columns()
            cut_columns(chunk, columns)
            ops = zip(columns.op, columns.key, strict=True)
            yield from (key for op, key in ops if op == OP_PUT)
