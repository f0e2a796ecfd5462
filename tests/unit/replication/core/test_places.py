"""Places of readers."""

import pytest

from millstream.documents.tokens import History, Vector
from millstream.model.position import FailoverEntry, Position
from millstream.replication.core.places import NOWHERE, Place, Present, leading_number, place_of

LOG = (FailoverEntry(2, 5, 2), FailoverEntry(1, 0, 1))
PRESENT = Present("db", (History(LOG, 8, 0), History(LOG[1:], 3, 0)))


def at(uuid, seqno):
    return Position(uuid, seqno, seqno, seqno)


def vector(*positions, epoch=0):
    return Vector(PRESENT.origin, positions, epoch)


@pytest.mark.parametrize(("seq", "number"), [
    (12, 12), ("12-abc", 12), ("12", 12), ("x-1", 0), (None, 0), (True, 0), (-3, 0), ([1], 0),
])  # fmt: skip
def test_numbers_of_what_only_its_source_understands(seq, number):
    assert leading_number(seq) == number
    assert Place(seq).number == number


def test_the_beginning():
    assert NOWHERE.is_beginning
    assert Place("0").is_beginning
    assert not Place("5-x").is_beginning
    assert Place("0-x", vector(Position(), Position())).is_beginning
    assert not Place("1-x", vector(at(1, 1), Position())).is_beginning


def test_only_who_tells_vectors_is_looked_into():
    token = vector(at(1, 3), at(1, 2)).text()
    assert place_of(token, tells_vectors=True).vector == vector(at(1, 3), at(1, 2))
    assert place_of(token, tells_vectors=False) == Place(token)
    assert place_of("7-g1AAAA", tells_vectors=True) == Place("7-g1AAAA")
    assert place_of(7, tells_vectors=True) == Place(7)
    assert place_of("7", tells_vectors=True) == Place("7")


def test_the_end_and_the_branches():
    assert PRESENT.end == vector(at(2, 8), at(1, 3))
    assert PRESENT.branches == (2, 1)
    assert Present("a", (), 0, ("b",)).lineage == ("a", "b")


def test_judging_cuts_what_is_not_this_history():
    beyond = vector(at(1, 7), at(1, 2))
    assert PRESENT.judge(beyond, restarts=False) == vector(at(1, 5), at(1, 2))
    assert PRESENT.judge(beyond, restarts=True) == vector(Position(), at(1, 2))
    purged = beyond._replace(purge_epoch=1)
    assert PRESENT.judge(purged, restarts=False).positions[0] == Position()


def test_a_copy_judges_vectors_of_its_original():
    other = vector(at(1, 5), at(1, 2))._replace(origin=5)
    assert PRESENT.judge(other, restarts=False) == vector(at(1, 5), at(1, 2))
    assert PRESENT.holds(other)


def test_other_partitions_are_not_comparable():
    single = vector(at(1, 1))
    assert PRESENT.judge(single, restarts=False) is None
    assert not PRESENT.holds(single)
    assert not PRESENT.is_reached(single, PRESENT.end)


def test_what_is_held_and_reached():
    assert PRESENT.holds(vector(at(1, 5), Position()))
    assert not PRESENT.holds(vector(at(1, 6), Position()))
    assert not PRESENT.holds(vector(at(9, 1), Position()))
    assert PRESENT.is_reached(vector(at(1, 5), Position()), PRESENT.end)
    assert not PRESENT.is_reached(PRESENT.end, vector(at(1, 5), Position()))


def test_forgotten_deletions_make_no_stamp_invalid():
    forgetful = PRESENT._replace(histories=(History(LOG, 8, 7), PRESENT.histories[1]))
    assert forgetful.holds(vector(at(1, 5), Position()))


def test_what_is_reached_partition_by_partition():
    stamp = vector(at(1, 5), at(1, 2))
    assert PRESENT.reached_parts(stamp, PRESENT.end) == [True, True]
    assert PRESENT.reached_parts(stamp, vector(at(1, 4), at(1, 3))) == [False, True]
    inside = Position(2, 8, 5, 9)
    assert PRESENT.reached_parts(stamp, vector(inside, at(1, 2))) == [False, True]
    lost = vector(at(1, 6), at(1, 2))  # the partition went another way behind 5
    assert PRESENT.reached_parts(lost, PRESENT.end) == [False, True]
    assert PRESENT.reached_parts(stamp, vector(at(1, 6), at(1, 3))) == [False, True]
    assert PRESENT.reached_parts(vector(at(1, 1)), PRESENT.end) == []
    assert PRESENT.reached_parts(stamp, vector(at(1, 1))) == []
