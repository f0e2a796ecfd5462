"""What the node agent needs of the data engine and of the indexes of its node.

Invariants:
1. What `carry_out` and `take_maps` were asked for is durable, and in force, once they return.
2. `record` and `copies` tell what is durable.

Elsewhere: who implements it (`databases.managed_engine`), who calls it (`cluster.aio.node_agent`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from millstream.cluster.core.admission import Step
from millstream.cluster.core.elements import Bucket, NodeRecord
from millstream.cluster.core.orders import Place
from millstream.cluster.core.recovery import HeldBucket
from millstream.cluster.core.reports import CopyReport, PartReport
from millstream.cluster.core.settings import Settings
from millstream.model.cluster_maps import DataMap, DataRecord, IndexMap, IndexRecord, MapKey
from millstream.vsr.core.versions import NEVER, Version

__all__ = ["ClusterMaps", "LocalEngine"]


class ClusterMaps(msgspec.Struct, frozen=True):
    """What every node knows of the cluster, of one linearizable read."""

    cluster: str
    """The cluster's uuid."""
    settings: Settings
    nodes: dict[str, NodeRecord]
    """By id."""
    buckets: dict[str, Bucket]
    """By uuid. A bucket that is missing was dropped."""
    data: dict[str, DataMap]
    index: dict[str, IndexMap]
    version: Version = NEVER
    """The newest version of any element that was read: a larger one is of a later read."""


class LocalEngine(Protocol):
    """The data engine and the indexes of one node."""

    def copies(self) -> Mapping[str, Mapping[int, CopyReport]]:
        """Return the copies that are here, and those whose record was adopted, by uuid."""

    def parts(self) -> Mapping[str, Mapping[int, PartReport]]:
        """Return the index parts that are here, by uuid."""

    def record(self, place: Place) -> DataRecord | None:
        """Return the adopted record of a partition."""

    def index_record(self, place: Place) -> IndexRecord | None:
        """Return the adopted index record of a partition."""

    def adopted(self) -> Mapping[str, HeldBucket]:
        """Return what is durably adopted of each bucket, by uuid."""

    def keys(self) -> Mapping[str, MapKey]:
        """Return the key of the newest whole data map that was taken, by uuid."""

    async def carry_out(self, bucket: str, steps: Sequence[Step]) -> None:
        """Carry out steps of orders, of any partitions of a bucket, in this order.

        Steps of one kind that follow each other may be made durable together. `RaiseToken` and
        `Admit` are not among them: the agent keeps these.

        Raises:
            MillstreamError: what was not done; what came before it is done.
        """

    async def take_maps(self, maps: ClusterMaps) -> None:
        """Take whole maps: make buckets that are new, drop those that are gone, adopt records.

        An older map or record is passed over. Maps of a smaller `version` drop no bucket: they
        may be older than the bucket.

        Raises:
            MillstreamError: some bucket could not follow; the others did.
        """

    def broken(self) -> Mapping[str, bool]:
        """Return the nodes that copies here have streams from or to; True: all are broken."""

    def set_right(self, lease_ms: int | None, *, is_admitted: bool) -> None:
        """Set until when active copies serve by the lease; None: the node is out of step.

        Args:
            lease_ms: on the clock of `time.monotonic_ns() // 1_000_000`.
            is_admitted: by an orchestrator, in this session.
        """

    def set_settings(self, settings: Settings) -> None:
        """Use these settings from now on."""

    def has_space(self, reserve_percent: int) -> bool:
        """Return whether the disk has more than the reserve left."""

    async def stop(self) -> None:
        """End what goes on in the background."""
