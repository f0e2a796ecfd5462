"""The interface of the server that a session uses.

Elsewhere: the implementation (`kv.aio.server`), sessions (`session`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from millstream.access.users import UserStore
    from millstream.kv.core.bucket import Bucket
    from millstream.kv.core.measuring import Piece
    from millstream.kv.core.partition.blobs import BlobPiece
    from millstream.kv.core.partition.partition import Partition
    from millstream.model.cluster_maps import DataRecord
    from millstream.model.partitions import PartitionState
    from millstream.upr.core.source import Hold
    from millstream.wire.mcbp import Packet, Status

__all__ = ["Host", "StreamPort"]

_Session = TypeVar("_Session", contravariant=True)
"""A connection, as the sessions' module has it."""


class StreamPort(Protocol):
    """The stream side of a connection that was opened as a producer."""

    def on_packet(self, packet: Packet) -> None:
        """Take one stream request, or a response to one of ours."""

    def close(self) -> None:
        """The connection is closed."""


class Host(Protocol[_Session]):
    """What a session needs from the server around it."""

    @property
    def buckets(self) -> Mapping[str, Bucket]:
        """Return the buckets by name."""

    @property
    def users(self) -> UserStore:
        """Return the users and their rights."""

    def config(self, bucket: Bucket | None) -> bytes:
        """Return the cluster map as JSON."""

    def open_stream(self, session: _Session, name: str, flags: int) -> StreamPort:
        """Make the connection a producer; an older one of the same name is closed."""

    def open_feed(self, session: _Session, name: str) -> StreamPort:
        """Make the connection feed copies here; an older one of the name is closed."""

    def tell_changed(self, bucket: Bucket) -> None:
        """Tell the bucket's subscribers of changes, soon."""

    def check_password(self, session: _Session, name: str, password: str) -> None:
        """Start the check; its result goes to `KvSession.on_password_checked`."""

    def later(self, session: _Session, seconds: float, done: Callable[[], None]) -> None:
        """Call back after some seconds, unless the connection has closed."""

    def change_state(
        self,
        session: _Session,
        partition_id: int,
        state: PartitionState,
        done: Callable[[Status], None],
    ) -> None:
        """Set the state of a partition's copy; `done` is called once that is durable."""

    def adopt(
        self,
        session: _Session,
        records: Mapping[int, DataRecord],
        done: Callable[[Status], None],
    ) -> None:
        """Adopt records in the session's bucket; `done` is called once they are durable."""

    def read_blob(
        self,
        session: _Session,
        name: bytes,
        offset: int,
        size: int,
        done: Callable[[BlobPiece | None], None],
    ) -> None:
        """Read a piece of an attachment of the session's bucket; None: it is not here."""

    def put_blob(
        self,
        session: _Session,
        name: bytes,
        offset: int,
        total: int,
        data: bytes,
        done: Callable[[int | Status], None],
    ) -> None:
        """Store a piece of an attachment; `done` gets the number of bytes here, or the error."""

    def measure(
        self,
        session: _Session,
        asked: Sequence[tuple[Partition, Hold, int]],
        limits: tuple[int, int, int],
        done: Callable[[Mapping[int, Sequence[Piece]] | Status], None],
    ) -> None:
        """Measure partitions above seqnos; see `kv.aio.measuring`, which says what is missing."""

    def wipe(self, session: _Session, at_ns: int, done: Callable[[], None]) -> None:
        """Delete all documents of the session's bucket at a time; `done` as in `Bucket.wipe`."""

    def statistics(self) -> list[tuple[str, str]]:
        """Return the server's own statistics."""
