"""What one bucket of a managed cluster has adopted: durable first, then in force.

Invariants:
1. A record, or a whole map, is in the bucket's file before it has any effect.
2. The adopted record of a partition only grows in age. Two contents of one key are damage.
3. A whole map brings its records with it, except those that are older than the adopted ones.
4. Once `adopt` or `take` returns, the copies that the records place here exist.

Records that are adopted at the same time share one write of the file.

Elsewhere: the file (`data_directory.map_file`), what records mean to copies (`kv.core.bucket`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from millstream.cluster.core.admission import is_news
from millstream.data_directory.map_file import AdoptedMap
from millstream.errors import CorruptionError
from millstream.kv.aio.engine import BucketEngine
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import DataMap, DataRecord

__all__ = ["AdoptedRecords", "with_map"]


class AdoptedRecords:
    """The records and the whole map of one bucket.

    Args:
        running: the bucket, which uses them already.
        adopted: what is in the file.
        keep: writes the file.
    """

    def __init__(
        self,
        running: BucketEngine,
        adopted: AdoptedMap,
        keep: Callable[[AdoptedMap], Awaitable[None]],
    ) -> None:
        self.adopted = adopted
        self._bucket = running.bucket
        self._copies = running.copies
        self._keep = keep
        self._waiting: dict[int, DataRecord] = {}
        self._write = asyncio.Lock()

    async def adopt(self, records: Mapping[int, DataRecord]) -> None:
        """Adopt records, by partition; older ones and known ones are passed over.

        Raises:
            CorruptionError: `other_map`: another content of a known key; nothing was adopted.
            UnavailableError: `disk_error`: nothing was adopted; as `Copies.take_places`.
        """
        for partition, record in records.items():
            if is_news(record, self._newest(partition)):
                self._waiting[partition] = record
        async with self._write:
            batch, self._waiting = self._waiting, {}
            for partition, record in records.items():
                if partition not in batch or batch[partition].at < record.at:
                    batch[partition] = record  # the write of its own batch has failed
            known = self.adopted.records
            news = {p: one for p, one in batch.items() if is_news(one, known[p])}
            if news:
                merged = tuple(news.get(p, one) for p, one in enumerate(known))
                await self._keep(self.adopted._replace(records=merged))
                self.adopted = self.adopted._replace(records=merged)
                self._bucket.use_records(news)
            await self._copies.take_places()

    def _newest(self, partition: int) -> DataRecord:
        return self._waiting.get(partition, self.adopted.records[partition])

    async def take(self, data_map: DataMap, nodes: tuple[NodeAddress, ...]) -> None:
        """Take a whole map, and the addresses of nodes; an older map is passed over.

        Raises as `adopt`.
        """
        async with self._write:
            before = self.adopted
            adopted = with_map(before, data_map, nodes)
            if adopted == before:
                return
            known = before.records
            news = {p: one for p, one in enumerate(adopted.records) if one.at > known[p].at}
            await self._keep(adopted)
            self.adopted = adopted
            if news:
                self._bucket.use_records(news)
            self._bucket.set_map(adopted.bucket_map, adopted.node_name)
            await self._copies.take_places()


def with_map(before: AdoptedMap, data_map: DataMap, nodes: tuple[NodeAddress, ...]) -> AdoptedMap:
    """Return what is adopted after a whole map came; the same if it is an older one.

    Raises:
        CorruptionError: `other_map`: another content of a known key.
    """
    if data_map.key < before.data_map.key:
        return before
    if data_map.key == before.data_map.key and data_map != before.data_map:
        raise CorruptionError(
            f"two maps of key {tuple(data_map.key)} of bucket {data_map.bucket} differ: remove "
            "the node from its cluster, and have it join anew with an empty directory",
            code="other_map",
        )
    pairs = zip(data_map.records, before.records, strict=True)
    records = tuple(one if is_news(one, known) else known for one, known in pairs)
    return before._replace(nodes=nodes, data_map=data_map, records=records)
