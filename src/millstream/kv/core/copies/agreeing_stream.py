"""A feed of a managed cluster: its copies acknowledge to no source with an older record.

Before the stream of a copy is requested, and whenever the copy has a newer record, the feed
exchanges records with the source (`AdoptRecords`, answered by `on_adopted`, if the source has the
newer one). The source is also told what the copy has promised: if that is above the branch that it
serves, somebody must be promoted. All copies that wait for that share one request.

Invariants:
1. No stream is requested, and nothing is acknowledged, before the source has said that its record
   is at least as new as the copy's.
2. One exchange is under way at a time. One that failed is repeated: by the pause of a copy that
   waits for its stream, every second for one that has a stream.
3. A bucket that is not managed has no records, and nothing is exchanged.

Elsewhere: the request (`record_exchange`), streams and changes (`replica_stream`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.errors import RemoteProtocolError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.feed_effects import Effect, Send
from millstream.kv.core.copies.record_exchange import (
    AdoptRecords,
    Exchange,
    exchange_from_json,
    exchange_request,
)
from millstream.kv.core.copies.replica_stream import Feed, Line, Stage
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.upr.core.consumer import WINDOW_BYTES
from millstream.wire.mcbp import Packet, Status

__all__ = ["AgreeingFeed"]

_RECORDS_OPAQUE: Final = 0x10001


class AgreeingFeed(Feed):
    """A feed that exchanges records; the arguments are those of `Feed`."""

    def __init__(
        self, bucket: Bucket, name: bytes, node_name: str, *, window_bytes: int = WINDOW_BYTES
    ) -> None:
        super().__init__(bucket, name, node_name, window_bytes=window_bytes)
        self._agreed: dict[int, MapKey] = {}
        """Keys of the source's records as it told them last."""
        self._told: dict[int, int] = {}
        """The branches that the source was told: what copies had promised."""
        self._to_exchange: set[int] = set()
        self._exchanged: dict[int, DataRecord] = {}
        """The records of the exchange under way."""
        self._tried: dict[int, MapKey] = {}
        """Keys of the copies' records as they were sent last."""

    # -- calls of the shell

    def look(self, partition_id: int) -> None:
        """The copy, or its record, has changed: check whether its stream may go on."""
        super().look(partition_id)
        line = self._lines.get(partition_id)
        if line is not None and line.stage is Stage.OPEN:
            self._agree(line)

    def ask_highs(self) -> None:
        """Ask for the source's high seqnos, and repeat exchanges that failed."""
        super().ask_highs()
        for line in self._lines.values():
            if line.stage is Stage.OPEN:
                self._agree(line)

    def take_effects(self) -> list[Effect]:
        """Return the pending effects, in order."""
        effects = super().take_effects()
        if self._to_exchange and not self._exchanged:
            effects.append(Send(self._exchange()))
        return effects

    def on_adopted(self, partition_ids: Iterable[int], failure: str) -> None:
        """The source's records are adopted; if not, `failure` says why."""
        for partition_id in partition_ids:
            if failure:
                self._agreed.pop(partition_id, None)
                self._disagree(partition_id, failure)
            else:
                self._go_on(partition_id)

    # -- inside

    def _agree(self, line: Line) -> bool:
        """Return whether the source's record is new enough; else have it told ours."""
        partition_id = line.partition.partition_id
        own = self._bucket.record(partition_id)
        if own is None or self._agreed.get(partition_id, _NOTHING) >= own.at:
            return True
        self._to_exchange.add(partition_id)
        return False

    def _ask(self, line: Line) -> None:
        if line.may_follow and not (self._agree(line) and self._has_told(line)):
            line.stage = Stage.AGREEING
        else:
            super()._ask(line)

    def _has_told(self, line: Line) -> bool:
        """Return whether the source knows what the copy has promised; else have it told."""
        partition = line.partition
        partition_id = partition.partition_id
        is_told = self._told.get(partition_id, 0) >= partition.last_branch
        if is_told or not self._bucket.is_managed:
            return True
        self._to_exchange.add(partition_id)
        return False

    def _acknowledge(self, line: Line) -> None:
        partition_id = line.partition.partition_id
        own = self._bucket.record(partition_id)
        if own is None or self._agreed.get(partition_id, _NOTHING) >= own.at:
            super()._acknowledge(line)
        elif self._tried.get(partition_id) != own.at:  # else it failed, and is repeated later
            self._to_exchange.add(partition_id)

    def _exchange(self) -> bytes:
        records = {p: self._bucket.record(p) for p in sorted(self._to_exchange)}
        self._to_exchange.clear()
        self._exchanged = {p: one for p, one in records.items() if one is not None}
        partitions = self._bucket.partitions
        branches = {p: partitions[p].last_branch for p in self._exchanged}
        self._told |= branches
        self._tried |= {p: one.at for p, one in self._exchanged.items()}
        return exchange_request(Exchange(self._exchanged, branches), _RECORDS_OPAQUE)

    def _on_reply(self, packet: Packet) -> None:
        if packet.opaque != _RECORDS_OPAQUE:
            super()._on_reply(packet)
            return
        exchanged, self._exchanged = self._exchanged, {}
        told: dict[int, DataRecord] = {}
        failure = "its record of the partition is older"
        if packet.status == Status.SUCCESS:
            try:
                told = exchange_from_json(packet.value).records
            except RemoteProtocolError as error:
                failure = str(error)
        else:
            failure = f"the node exchanges no records: status 0x{packet.status:02x}"
        newer: dict[int, DataRecord] = {}
        for partition_id, sent in exchanged.items():
            theirs, own = told.get(partition_id), self._bucket.record(partition_id)
            if theirs is None or theirs.at < sent.at:
                self._disagree(partition_id, failure)
                continue
            self._agreed[partition_id] = theirs.at
            if own is not None and theirs.at >= own.at and theirs != own:
                newer[partition_id] = theirs
            else:
                self._go_on(partition_id)
        if newer:
            self._effects.append(AdoptRecords(newer))
        self._has_news = True

    def _go_on(self, partition_id: int) -> None:
        line = self._lines.get(partition_id)
        if line is None or line.stage is not Stage.AGREEING:
            return
        if line.is_wanted:
            self._ask(line)
        else:
            self._rest(line)

    def _disagree(self, partition_id: int, why: str) -> None:
        line = self._lines.get(partition_id)
        if line is not None and line.stage is Stage.AGREEING:
            line.failure = why
            self._rest(line)


_NOTHING: Final = MapKey(-1, 0)
