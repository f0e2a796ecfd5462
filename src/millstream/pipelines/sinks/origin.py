"""The source bucket of a stream, which a repairing sink asks for documents.

Invariants:
1. Its options are those of the stream: the same bucket, user and partitions.
2. An unavailable node is asked again for `reconnectTimeout`. Then the batch and the query fail.
   The batch is repeated when the query is started again.

Elsewhere: what is asked and why (`sinks.repairing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from millstream.client.documents import Key
from millstream.client.extensions import Versioned
from millstream.client.kv import Client
from millstream.errors import UnavailableError
from millstream.model.partitions import key_from_text
from millstream.pipelines.change_stream.control import open_again
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.patience import ask_again
from millstream.pipelines.change_stream.ranges import RangeRead
from millstream.pipelines.change_stream.reading import pinned_batches
from millstream.pipelines.change_stream.schema import ARROW_SCHEMA, RowForm
from millstream.pipelines.sinks.change_rows import rows_from
from millstream.pipelines.sinks.repairing import OP_DELETE, OP_PUT, OriginPosition, Row

__all__ = ["BucketOrigin"]

_NS_PER_US: Final = 1000
_SIGN: Final = 1 << 63


class BucketOrigin:
    """A `repairing.Origin` over the kv port.

    Raises:
        UnavailableError, AccessError: as `millstream.connect`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: Client = open_again(options)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @property
    def partition_count(self) -> int:
        """Number of its partitions."""
        return self._client.partition_count

    def positions(self, partitions: Collection[int]) -> Mapping[int, OriginPosition]:
        """Return where partitions stand."""
        wanted = sorted(partitions)
        return {
            found.partition_id: OriginPosition(
                found.branch, found.durable_seqno, found.purge_seqno
            )
            for found in ask_again(self._client, lambda client: client.positions(wanted))
        }

    def newest(self, partition: int, keys: Collection[str]) -> Mapping[str, Row]:
        """Return the newest row of each key, deletions included; unknown keys are left out."""
        names: dict[Key, str] = {key_from_text(key): key for key in keys}
        found = ask_again(self._client, lambda client: client.get_versioned_many(names))
        return {names[key]: _row(partition, names[key], found[key]) for key in found}

    def everything(self, partition: int) -> Iterator[Sequence[Row]]:
        """Yield all rows of a partition as of one moment, deletions included, in pieces."""
        leases = ask_again(
            self._client, lambda client: client.open_lease([partition]), may_move=True
        )
        held = leases.get(partition)
        if held is None:
            raise UnavailableError(
                f"partition {partition} of bucket {self._options.bucket!r} cannot be held",
                code="partition_inactive",
            )
        read = RangeRead(partition, 0, held.at, 0, 0, 0, held.branch, lease_id=held.lease_id)
        form = RowForm(
            ARROW_SCHEMA, has_values=self._options.has_values, has_meta=self._options.has_meta
        )
        if read.row_count_max:
            for batch in pinned_batches(self._options, form, [read]):
                yield list(rows_from(batch))
        lease_id = held.lease_id
        ask_again(self._client, lambda client: client.release_lease(lease_id, [partition]))


def _row(partition: int, key: str, found: Versioned) -> Row:
    return Row(
        OP_DELETE if found.is_deleted else OP_PUT, partition, found.branch, found.seqno, key,
        _signed(found.cas), _signed(found.rev), found.expiry, found.flags, found.datatype,
        None if found.is_deleted else found.value, found.cas // _NS_PER_US,
    )  # fmt: skip


def _signed(number: int) -> int:
    """Return a number of 64 bits as two's complement, as the columns have it."""
    return number - 2 * _SIGN if number >= _SIGN else number
