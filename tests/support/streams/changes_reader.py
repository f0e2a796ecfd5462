"""A reader of `_changes` over a simulated engine: it has a token and what it was sent, no more.

It reads row by row, is interrupted anywhere, and goes on from the token of the last row it got.

Invariants, each an assertion:
1. No row is shown that a kill could take away.
2. At any time the reader knows every change as of the closed part of its token, as far as that
   lies in the present history: it was sent the change itself, or a later one of its key that was
   made after it. One that restarts (`restarts`) was sent the change itself.
3. A token is not taken back where the history that it lies in is the present one, up to the end
   of the snapshot that it is inside of, and no deletions were forgotten meanwhile.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from millstream.documents.tokens import TokenWriter, Vector, closed_part, judged, parse_token
from millstream.errors import UnavailableError
from millstream.kv.core.revisions.changes_feed import ChangesFeed, Piece, history_of
from millstream.model.position import Position
from millstream.wire.frames import description_bytes, seqno_of
from support.kv.engine_model import Made, PartitionModel
from support.kv.simulated_engine import PARTITIONS, SimulatedEngine

ORIGIN: Final = 7


class ChangesReader:
    def __init__(self, engine: SimulatedEngine, rng: random.Random, *, restarts: bool) -> None:
        self.engine, self.rng, self.restarts = engine, rng, restarts
        self.token = Vector(ORIGIN, (Position(),) * PARTITIONS).text()
        self.known: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
        """Frames it was sent, and those that were replaced by what it was sent."""
        self.sent: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
        self.last: list[dict[bytes, bytes]] = [{} for _ in range(PARTITIONS)]
        """Key -> the frame that it was sent last."""
        self.rows = 0
        self._places: dict[tuple[int, Position], tuple[Made, Made]] = {}
        self._feed: ChangesFeed | None = None
        self._chunk: tuple[int, object] | None = None

    def interrupt(self) -> None:
        """The connection, or the node, is gone."""
        if self._feed is not None:
            self._feed.close()
        self._feed = self._chunk = None

    def lose(self) -> None:
        """The process is gone, and what it held."""
        self._feed = self._chunk = None

    def step(self) -> bool:
        """Read a little; False: there was nothing to read."""
        engine = self.engine
        if self._feed is None:
            vector = parse_token(self.token)
            assert isinstance(vector, Vector)
            self._feed = ChangesFeed(engine.bucket.partitions, vector, restarts=self.restarts)
            for p, walk in self._feed.walks.items():
                self._check_kept(p, vector.positions[p], walk.position)
            self._tokens = TokenWriter(vector._replace(positions=self._feed.positions))
        if any(partition.replica is not None for partition in engine.bucket.partitions):
            with pytest.raises(UnavailableError, match="not active on this node"):
                self._feed.behind()
            self.interrupt()
            return False
        numbers = self._feed.behind()
        if self._chunk is not None:
            number, chunk = self._chunk
            self._chunk = None
            piece = self._feed.walks[number].from_log(chunk)
            if piece is not None:
                self._take(number, piece)
            return True
        if not numbers:
            for p, walk in self._feed.walks.items():
                self._tokens.move(p, walk.position)
            self._show(0)
            return False
        number = self.rng.choice(numbers[:2])
        walk = self._feed.walks[number]
        if not walk.begin():
            return False
        piece = walk.from_memory()
        if piece is not None:
            self._take(number, piece)
        else:
            self._chunk = number, next(walk.chunks, None)  # taken in at a later step
        return True

    def _take(self, p: int, piece: Piece) -> None:
        model = self.engine.models[p]
        stop = self.rng.randint(0, len(piece.frames)) if self.rng.random() < 0.2 else None
        for number, described in enumerate(piece.frames):
            if number == stop:
                self.interrupt()
                return
            frame = described[description_bytes(described) :]
            seqno = seqno_of(frame)
            assert seqno <= model.acknowledged, f"p{p}: {seqno} may still get lost"
            made = model.made(seqno)
            assert made.frame == frame
            self._learn(p, model, made)
            self._tokens.move(p, piece.snapshot.at(seqno))
            self._show(p)
        self._tokens.move(p, piece.snapshot.at(piece.covered))
        self._show(p)

    def _learn(self, p: int, model: PartitionModel, made: Made) -> None:
        self.rows += 1
        self.sent[p].add(made.frame)
        self.last[p][made.key] = made.frame
        versions = (model.history[seqno - 1] for seqno in model.by_key[made.key])
        self.known[p] |= {one.frame for one in versions if one and one.seqno <= made.seqno}

    def _show(self, p: int) -> None:
        self.token = self._tokens.text(p).decode()
        position = self._tokens.position(p)
        place = self._place(p, position)
        if place is not None:
            self._places[p, position] = place
        self.check(p)

    def check(self, p: int) -> None:
        """What the token says is held, is held."""
        vector = parse_token(self.token)
        assert isinstance(vector, Vector)
        histories = [history_of(partition) for partition in self.engine.bucket.partitions]
        held = judged(closed_part(vector), histories, restarts=self.restarts).positions[p]
        self._check_as_of(p, held.seqno)

    def _check_kept(self, p: int, position: Position, judged_as: Position) -> None:
        purge = self.engine.bucket.partitions[p].purge_seqno
        is_read = position.seqno >= purge or position.purge_seqno == purge
        place = self._places.get((p, position))
        if is_read and place is not None and place == self._place(p, position):
            assert judged_as == position, f"p{p}: {position} was taken back to {judged_as}"

    def _place(self, p: int, position: Position) -> tuple[Made, Made] | None:
        """What stands where a position is, and where its snapshot ends."""
        history = self.engine.models[p].history
        if not 0 < position.seqno <= position.snap_end <= len(history):
            return None
        there, end = history[position.seqno - 1], history[position.snap_end - 1]
        return None if there is None or end is None else (there, end)

    def _check_as_of(self, p: int, seqno: int) -> None:
        model = self.engine.models[p]
        has = self.sent[p] if self.restarts else self.known[p]
        for made in model.as_of(seqno):
            if not model.may_be_gone(made):
                assert made.frame in has, f"p{p}: {made.key!r} at {made.seqno} never arrived"

    def finish(self) -> None:
        """Everything is durable: it comes to the end, and holds what there is."""
        for _ in range(10_000):
            if not self.step() and self._chunk is None:
                break
        ends = [partition.high_seqno for partition in self.engine.bucket.partitions]
        for p, model in enumerate(self.engine.models):
            vector = parse_token(self.token)
            assert isinstance(vector, Vector)
            assert vector.is_closed, vector
            assert [position.seqno for position in vector.positions] == ends
            self._check_as_of(p, model.high)
