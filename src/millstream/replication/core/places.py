"""Where a run stands in its source, and what a database is judged by.

Invariants:
1. A place is what the source calls it; only of a source that tells vectors it is looked into.
2. Vectors are compared after the same database judged them; a copy judges those of its original,
   as positions name branches of history, not databases.

Elsewhere: vectors and the rule (`documents.tokens`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from millstream.documents.tokens import (
    History,
    Vector,
    is_below,
    is_position_below,
    is_valid,
    judged,
    judged_position,
    origin_of,
    parse_token,
    vector_at,
)
from millstream.errors import UsageError
from millstream.model.position import Position

__all__ = ["NOWHERE", "Place", "Present", "leading_number", "place_of"]


class Place(NamedTuple):
    """A position of a reader, as the source gives it, and as a vector if it has one."""

    seq: Any
    """JSON that only the source understands; 0 is the beginning."""
    vector: Vector | None = None

    @property
    def number(self) -> int:
        """How far it is, roughly: for people and for thinning histories."""
        return self.vector.total if self.vector is not None else leading_number(self.seq)

    @property
    def is_beginning(self) -> bool:
        """Whether nothing was read yet."""
        if self.vector is not None:
            return self.vector.total == 0
        return self.seq in (0, "0", None)


NOWHERE: Final = Place(0)


def place_of(seq: Any, *, tells_vectors: bool) -> Place:
    """Return the place that a source calls `seq`."""
    if tells_vectors and isinstance(seq, str):
        try:
            vector = parse_token(seq)
        except UsageError:
            return Place(seq)
        return Place(seq) if isinstance(vector, int) else Place(seq, vector)
    return Place(seq)


def leading_number(seq: Any) -> int:
    """Return the number that an opaque sequence begins with, 0 if it has none."""
    if isinstance(seq, int) and not isinstance(seq, bool):
        return max(seq, 0)
    digits = seq.partition("-")[0] if isinstance(seq, str) else ""
    return int(digits) if digits.isascii() and digits.isdigit() else 0


class Present(NamedTuple):
    """A database as it is now."""

    uuid: str
    histories: tuple[History, ...]
    purge_epoch: int = 0
    ancestors: tuple[str, ...] = ()
    """Uuids of the databases that it is a copy of, newest first."""

    @property
    def origin(self) -> int:
        """How its vectors name it."""
        return origin_of(self.uuid)

    @property
    def lineage(self) -> tuple[str, ...]:
        """Its uuid, and those that it had as another database."""
        return (self.uuid, *self.ancestors)

    @property
    def end(self) -> Vector:
        """The position of a reader that has everything."""
        seqnos = (history.high_seqno for history in self.histories)
        return vector_at(self.origin, self.histories, seqnos, self.purge_epoch)

    @property
    def branches(self) -> tuple[int, ...]:
        """The newest branch of each partition: another one means that writes may be lost."""
        return tuple(history.log[0].uuid for history in self.histories)

    def adopted(self, vector: Vector) -> Vector | None:
        """Return a vector as one of this database; None if it has other partitions."""
        if len(vector.positions) != len(self.histories):
            return None
        return vector._replace(origin=self.origin)

    def judge(self, vector: Vector, *, restarts: bool) -> Vector | None:
        """Return where a reader goes on that stood at `vector`; None: it has other partitions.

        `restarts`: the reader sees a part of the documents by their content.
        """
        adopted = self.adopted(vector)
        return adopted and judged(adopted, self.histories, restarts=restarts)

    def holds(self, vector: Vector) -> bool:
        """Whether the database still has everything that it had when it stood at `vector`.

        Deletions that were forgotten since count as had.
        """
        adopted = self.adopted(vector)
        histories = [history._replace(purge_seqno=0) for history in self.histories]
        return adopted is not None and is_valid(adopted, histories)

    def reached_parts(self, stamp: Vector, end: Vector) -> list[bool]:
        """Return for each partition whether a reader at `end` has what it had at `stamp`.

        Only a reader of a whole snapshot has, and only if the database still holds both. Empty:
        one of the two has other partitions.
        """
        one, other = self.adopted(stamp), self.adopted(end)
        if one is None or other is None:
            return []
        return [
            above.is_closed
            and _is_held(below, history)
            and _is_held(above, history)
            and is_position_below(below, above)
            for below, above, history in zip(
                one.positions, other.positions, self.histories, strict=True
            )
        ]

    def is_reached(self, stamp: Vector, end: Vector) -> bool:
        """Whether a reader at `end` has what the database had at `stamp`; it holds both."""
        one, other = self.adopted(stamp), self.adopted(end)
        return one is not None and other is not None and is_below(one, other)


def _is_held(position: Position, history: History) -> bool:
    history = history._replace(purge_seqno=0)
    return judged_position(position, history, restarts=False) == position
