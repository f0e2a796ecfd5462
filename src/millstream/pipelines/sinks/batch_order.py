"""Which batch may be the next one of a store: the rule that every sink shares.

A store keeps by which query its newest batch was, and the number of it. A query is known by the id
in its checkpoint, so another query has another checkpoint.

Invariants:
1. One query fills a store. A batch of another one is refused.
2. Batches count up. A batch below the newest one is refused; the newest one may come again.
3. What is not known refuses nothing: a store without a record takes any batch, and so does a
   batch of which Spark does not tell the query, as far as its number allows it.

Elsewhere: who asks (`sinks.repairing`, `sinks.grouping`, `sinks.relating`, `sinks.transaction`),
where the record is kept (each store).
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import UsageError

__all__ = ["Writer", "next_writer"]


class Writer(NamedTuple):
    """A batch and the id of its query; empty for not known."""

    batch: int
    query: str = ""


def next_writer(
    last: Writer | None, this: Writer, what: str, anew: str, *, gap: str = ""
) -> Writer:
    """Return what a store has to keep of a batch that may come next.

    Args:
        last: what it has of the newest one; None for nothing.
        this: the batch.
        what: the store, as errors name it.
        anew: how to begin with another checkpoint, after "or".
        gap: what to do where batches between the newest and this one are missing; empty: such a
            batch is taken, because not every batch leaves a record.

    Raises:
        UsageError: `other_checkpoint`.
    """
    if last is None:
        return this
    if last.query and this.query and last.query != this.query:
        reason = (
            f"{what} was written by the query {last.query}, up to batch {last.batch}. This is "
            f"query {this.query}, which has another checkpoint. Go on with the checkpoint of "
            f"before, or {anew}"
        )
    elif this.batch < last.batch:
        reason = (
            f"{what} has batch {last.batch}, this is batch {this.batch}: the checkpoint is an "
            f"older copy, or another one. Go on with the newest, or {anew}"
        )
    elif gap and this.batch > last.batch + 1:
        newest = f"batch {last.batch}" if last.batch >= 0 else "no batch"
        reason = (
            f"{what} has {newest}, this is batch {this.batch}: those between are not there. {gap}"
        )
    else:
        return this if this.query else this._replace(query=last.query)
    raise UsageError(f"{reason}. Nothing was changed", code="other_checkpoint")
