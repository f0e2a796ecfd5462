"""The state of one streaming query in its source process: planner, connection, lease keeper.

Invariants:
1. A checkpoint is used only with its bucket, identified by uuid, not by name, and with the options
   `partitions` and `keyPrefix` that it began with: what else was passed over would stay missing.
2. A query that begins at `latest` writes that position to Spark's offset log before it reads. One
   that begins at a time need not: asked again, the time means a place that leaves out nothing.
3. Without new changes the query waits here, up to `pollMs`, so that it does not spin. It also
   waits if the next batch would be empty and only close snapshots that were read to their end. So
   a new change is in a batch at once, and not after an empty one.
4. Nodes that do not answer are waited for, up to `reconnectTimeout`, and never taken for "nothing
   is new": a run that ends with what is there would end. A call that has waited for `WAIT_STEP_S`
   returns the same place with another number of `waits`. To Spark that is a batch, an empty one:
   its progress says what is waited for, and a query can be stopped. Before its first answer, and
   in a run that ends, a query waits in the call.
5. With `minRowsPerBatch` a batch waits for so many changes, but not longer than `maxTriggerDelay`
   after the batch before it. The first batch of a run, and a run that ends, do not wait.

Elsewhere: Spark's side (`source`), the rules (`planner`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

from millstream.client.extensions import PartitionPosition
from millstream.errors import RoutingError, UnavailableError, UsageError
from millstream.pipelines.change_stream.control import LeaseKeeper, NodeControl
from millstream.pipelines.change_stream.offsets import (
    Offset,
    OffsetEntry,
    offset_from_json,
    offset_to_json,
)
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.patience import Wait
from millstream.pipelines.change_stream.planner import Planner, closed_entry
from millstream.pipelines.change_stream.ranges import ranges_between
from millstream.pipelines.change_stream.timestamps import seqnos_before

__all__ = ["Query", "check_given"]

POLL_PAUSE_S: Final = 0.02
WAIT_STEP_S: Final = 5.0
"""How long a call waits for nodes that do not answer before it returns."""

Answer = TypeVar("Answer")


class Query:
    """A running query, from its first offset to its stop.

    Args:
        options: of the source; where to connect, where to begin.

    Raises:
        UnavailableError, AccessError: the node cannot be asked.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._control = NodeControl(options, waits=False)
        self._wait = Wait(options.reconnect_s)
        self._waits_for = ""
        self._began_s = -math.inf
        self._has_planned = False
        self._high: dict[str, Any] | None = None
        self._planner = Planner(
            self._control,
            options.bucket,
            repairs=options.repairs,
            is_durable_only=options.is_durable_only,
        )
        self._keeper = LeaseKeeper(options, self._planner.leases_in_use)
        self._first: dict[str, Any] | None = None

    def stop(self) -> None:
        """End the thread and close the connection."""
        self._keeper.stop()
        self._control.close()

    def prepare_available_now(self) -> None:
        """Take the present end as the goal of this run."""
        self._until_answered(self._planner.begin_available_now)

    def initial_offset(self) -> dict[str, Any]:
        """Return where the options say that a new query begins.

        Raises:
            UnavailableError: `durable_unknown`: `latest` of durable changes cannot be told.
        """
        if self._options.starting_ns is not None:
            return self._form(self._until_answered(self._since) or {})
        starting = self._options.starting_offsets
        if isinstance(starting, Offset):
            check_given(
                starting, "startingOffsets", self._options.bucket, self._control.bucket_uuid
            )
            entries = {p: starting.entry(p) for p in self._control.partition_ids}
            return self._form(entries)
        if starting == "earliest":
            return self._form({p: OffsetEntry() for p in self._control.partition_ids})
        self._first = self._form(self._until_answered(self._present) or {})
        return self._first

    def latest_offset(
        self, start: dict[str, Any], rows_max: int | None, bytes_max: int | None = None
    ) -> dict[str, Any]:
        """Return where the next batch ends; `start` itself if nothing is new in time.

        Raises:
            UsageError: `bad_offset`, `other_bucket`, `other_options`.
            RollbackRequiredError: see `planner`.
        """
        if start == self._first:
            # An empty first batch writes the present end, which `latest` means, to the offset
            # log: should the batch after it fail, a restart must not begin at a later end.
            self._first = None
            return start
        offset = offset_from_json(start)
        self._check(offset)
        offset = offset._replace(key_prefix=self._options.key_prefix)
        deadline = time.monotonic() + self._options.poll_ms / 1000
        while True:
            end = self._planned(offset, rows_max, bytes_max)
            if end is None:
                return self._form(offset.entries) | {"waits": start.get("waits", 0) + 1}
            has_rows = any(read.row_count_max for read in ranges_between(offset, end))
            if has_rows:
                self._began_s = time.monotonic()
            is_over = self._planner.is_available_now or time.monotonic() >= deadline
            if is_over or ranges_between(offset, end):
                return start if end == offset else self._form(end.entries)
            time.sleep(POLL_PAUSE_S)

    def _planned(
        self, offset: Offset, rows_max: int | None, bytes_max: int | None
    ) -> Offset | None:
        """Return the next offset; None if nodes do not answer (invariant 4)."""

        def plan() -> Offset:
            waited_s = time.monotonic() - self._began_s
            rows_min = self._options.rows_min or 0
            entries = self._planner.plan(
                offset.entries,
                rows_max,
                bytes_max,
                rows_min=rows_min if waited_s < self._options.trigger_delay_s else 0,
            )
            return offset._replace(entries=entries)

        until_s = time.monotonic() + WAIT_STEP_S
        may_return = self._has_planned and not self._planner.is_available_now
        end = self._until_answered(plan, until_s if may_return else math.inf)
        self._has_planned = self._has_planned or end is not None
        return end

    def _until_answered(
        self, ask: Callable[[], Answer], until_s: float = math.inf
    ) -> Answer | None:
        while time.monotonic() < until_s:
            try:
                answer = ask()
            except (UnavailableError, RoutingError) as error:
                self._pause(error)
            else:
                self._answered()
                return answer
        return None

    def _pause(self, error: UnavailableError | RoutingError) -> None:
        """Pause before nodes are asked again; raise the error if that may not be."""
        self._waits_for = str(error)
        if error.retry == "never":
            raise error
        self._wait.pause(error)
        self._control.refresh_map()

    def _answered(self) -> None:
        self._wait.end()
        self._waits_for = ""

    def high_offset(self) -> dict[str, Any] | None:
        """Return the present end of every partition, for the progress.

        While nodes do not answer: the last known end, with what is waited for as `waiting`.
        """
        if not self._waits_for:
            try:
                positions = self._control.positions()
            except (UnavailableError, RoutingError) as error:
                self._waits_for = str(error)
            else:
                self._high = self._form(
                    {
                        p: OffsetEntry(high.uuid, end, end, end, high.branch)
                        for p, high, end in self._ends(positions)
                    }
                )
                return self._high
        return (self._high or {}) | {"waiting": self._waits_for}

    def _form(self, entries: Mapping[int, OffsetEntry]) -> dict[str, Any]:
        bucket, uuid = self._options.bucket, self._control.bucket_uuid
        return offset_to_json(Offset(bucket, uuid, entries, self._options.key_prefix))

    def _since(self) -> dict[int, OffsetEntry]:
        """Return where partitions begin for `startingTimestamp`."""
        assert self._options.starting_ns is not None
        leases = self._control.open_whole_lease(self._control.partition_ids)
        try:
            found = seqnos_before(self._options, leases, self._options.starting_ns)
        finally:
            for lease_id in {held.lease_id for held in leases.values()}:
                mine = [p for p, held in leases.items() if held.lease_id == lease_id]
                self._control.let_go(lease_id, mine)
        begun = {
            p: closed_entry(self._control.failover_log(p), at, leases[p].branch)
            for p, at in found.items()
            if at
        }
        return {p: begun.get(p, OffsetEntry()) for p in self._control.partition_ids}

    def _present(self) -> dict[int, OffsetEntry]:
        return {
            p: closed_entry(self._control.failover_log(p), end, high.branch)
            for p, high, end in self._ends(self._control.positions_known())
        }

    def _ends(
        self, positions: Mapping[int, PartitionPosition]
    ) -> Iterator[tuple[int, PartitionPosition, int]]:
        for p, high in positions.items():
            is_durable_only = self._options.is_durable_only
            yield p, high, high.durable_seqno if is_durable_only else high.high_seqno

    def _check(self, offset: Offset) -> None:
        bucket, uuid = self._options.bucket, self._control.bucket_uuid
        if (offset.bucket, offset.bucket_uuid) != (bucket, uuid):
            raise UsageError(
                f"the offset is one of bucket {offset.bucket!r} ({offset.bucket_uuid}), but the "
                f"node has {bucket!r} ({uuid}): another bucket, or one that was created anew. "
                "Start with a new checkpoint and an empty sink (`run lake`: another directory)",
                code="other_bucket",
            )
        prefix = self._options.key_prefix
        if offset.key_prefix not in (None, prefix):
            raise _other_options("keyPrefix", repr(offset.key_prefix), repr(prefix))
        read, wanted = set(offset.entries), set(self._control.partition_ids)
        if read != wanted:
            raise _other_options("partitions", _spans(read), _spans(wanted))


def check_given(offset: Offset, option: str, bucket: str, bucket_uuid: str) -> None:
    """Refuse an offset of another bucket that an option gives.

    Raises:
        UsageError: `other_bucket`.
    """
    if (offset.bucket, offset.bucket_uuid) != (bucket, bucket_uuid):
        raise UsageError(
            f"option {option}: the offset is one of bucket {offset.bucket!r} "
            f"({offset.bucket_uuid}), but the node has {bucket!r} ({bucket_uuid}): another "
            "bucket, or one that was created anew. Give an offset of this one: `millstream "
            "pipeline offsets make` writes it",
            code="other_bucket",
        )


def _other_options(name: str, began: str, now: str) -> UsageError:
    return UsageError(
        f"this checkpoint began with option {name} {began}, not {now}: what was passed over until "
        "now would stay missing, or stay in the sink. Set the option back, or start with a new "
        "checkpoint and an empty sink",
        code="other_options",
    )


def _spans(partition_ids: Collection[int]) -> str:
    """Return partitions as the option names them, such as 0-15,40."""
    spans: list[list[int]] = []
    for p in sorted(partition_ids):
        if spans and spans[-1][1] == p - 1:
            spans[-1][1] = p
        else:
            spans.append([p, p])
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in spans) or "none"
