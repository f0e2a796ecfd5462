from __future__ import annotations

import pytest

from millstream.kv.core.queue.holds import KEPT_BYTES, Holds, Superseded, with_kept
from millstream.wire.frames import mutation
from support.kv.log_double import NOW


def frame(seqno: int) -> bytes:
    return mutation(0, b"k", b"", seqno, 1, NOW, 0, 0, 0)


def kept(seqno: int, successor: int, *, is_logged: bool = False) -> Superseded:
    return Superseded(frame(seqno), 0, successor, is_logged, b"")


def seqnos(holds: Holds, at: int) -> list[int]:
    return [seqno for seqno, _ in holds.visible(0, at, at)]


def test_each_hold_sees_what_was_newest_at_its_seqno() -> None:
    holds = Holds()
    early = holds.open_frozen(10)
    holds.keep(4, kept(4, 12))
    late = holds.open_frozen(20)
    holds.keep(12, kept(12, 21))
    holds.keep(9, kept(9, 22))
    assert (seqnos(holds, 10), seqnos(holds, 20)) == ([4, 9], [9, 12])
    holds.release(late)
    holds.check(0)
    assert seqnos(holds, 10) == [4, 9]
    holds.release(early)
    holds.check(0)
    assert (holds.kept, holds.bytes_kept, holds.high) == ({}, 0, -1)


def test_what_stands_beside_the_kept_changes_is_told() -> None:
    holds = Holds()
    hold = holds.open_frozen(3000)
    for seqno in (7, 2900):
        holds.keep(seqno, Superseded(frame(seqno), 0, 4000, False, b"side %d" % seqno))
    assert sorted(holds.sides()) == [b"side 2900", b"side 7"]
    holds.release(hold)
    assert list(holds.sides()) == []


def test_the_oldest_state_is_lost_with_all_who_hold_it() -> None:
    holds = Holds()
    first, same, later = holds.open_frozen(5), holds.open_frozen(5), holds.open_frozen(9)
    marked = holds.open_logged(3)
    holds.keep(2, kept(2, 10))
    assert holds.lose_oldest()
    assert [holds.is_held(h) for h in (first, same, later, marked)] == [False, False, True, True]
    assert seqnos(holds, 9) == [2]
    assert holds.lose_oldest()
    assert not holds.lose_oldest()
    assert holds.bytes_kept == 0
    holds.release(first)
    assert len(holds) == 1


def test_holds_below_a_seqno_can_be_lost() -> None:
    holds = Holds()
    low, mark, high = holds.open_frozen(5), holds.open_logged(7), holds.open_frozen(9)
    holds.lose_below(9)
    assert [holds.is_held(h) for h in (low, mark, high)] == [False, False, True]
    holds.lose_all()
    assert (len(holds), holds.oldest_at()) == (0, None)


def test_what_the_log_has_is_not_kept_below_the_floor() -> None:
    holds = Holds()
    holds.open_frozen(3000)
    holds.keep(1030, kept(1030, 3001, is_logged=True))
    holds.keep(1040, kept(1040, 3002))
    holds.pass_floor(0, 1023)
    holds.pass_floor(1, 1029)
    assert seqnos(holds, 3000) == [1030, 1040]
    holds.pass_floor(1, 2047)
    assert seqnos(holds, 3000) == [1040]
    assert holds.bytes_kept == KEPT_BYTES + len(frame(1040))
    holds.check(2047)


def test_a_hold_says_where_its_readers_begin() -> None:
    holds = Holds()
    assert (holds.oldest_at(), holds.lowest_start()) == (None, None)
    lease, stream = holds.open_frozen(10), holds.open_frozen(20)
    holds.asked(stream, 15)
    assert (holds.oldest_at(), holds.lowest_start()) == (10, 0), "the lease's reader may want all"
    holds.asked(lease, 8)
    holds.asked(lease, 9)
    assert holds.lowest_start() == 8, "the first range may be asked for again"
    holds.release(lease)
    holds.asked(lease, 1)
    assert (holds.oldest_at(), holds.lowest_start()) == (20, 15)


@pytest.mark.parametrize("ends", [(4, 7, 10), (3, 10), (10,)])
def test_kept_changes_take_their_place_among_those_of_the_log(ends: tuple[int, ...]) -> None:
    starts = (0, *ends)
    chunks = [
        ([frame(s) for s in (2, 3, 6, 8) if begin < s <= end], end)
        for begin, end in zip(starts, ends, strict=False)
    ]
    found = list(with_kept(iter(chunks), [(s, frame(s)) for s in (1, 5, 10)]))
    assert [last for _, last in found] == list(ends)
    assert [f for part, _ in found for f in part] == [frame(s) for s in (1, 2, 3, 5, 6, 8, 10)]
    assert list(with_kept(iter(chunks), [])) == chunks
