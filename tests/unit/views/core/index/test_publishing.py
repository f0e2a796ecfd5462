import pytest

from millstream.model.position import FailoverEntry, Position
from millstream.views.core.index.header import Header, Judged, PartRead
from millstream.views.core.index.publishing import why_left_out

LOG = (FailoverEntry(1, 0, 1),)
JUDGED = {0: Judged(LOG, 100)}


def header(here):
    return Header(
        signature="", collation="", reduces=(), states={0: "active"}, positions={0: here}
    )


def closed(seqno, uuid=1):
    return Position(uuid, seqno, seqno, seqno)


def part(start, end, is_whole=True):
    return PartRead(start, end, LOG, is_whole=is_whole)


def why(here, read, judged=JUDGED, partition=0):
    return why_left_out(header(here), partition, read, judged)


def test_parts_that_continue_the_position_are_published():
    assert why(Position(), part(Position(), closed(10))) is None
    assert why(closed(10), part(closed(10), closed(20))) is None
    assert why(Position(1, 12, 10, 20), part(Position(1, 12, 10, 20), closed(20))) is None


def test_parts_that_begin_earlier_are_published_outside_snapshots():
    inside = Position(1, 15, 10, 20)
    assert why(inside, part(closed(10), closed(20))) is None
    assert why(inside, part(closed(5), closed(20))) is None
    assert why(inside, part(closed(11), closed(20))) == "not_joined"
    assert why(inside, part(Position(1, 15, 9, 20), closed(20))) == "not_joined"


@pytest.mark.parametrize(
    ("reason", "here", "read", "judged"),
    [
        ("not_judged", closed(10), part(closed(10), closed(20)), {}),
        ("lease_lost", closed(10), part(closed(10), closed(20), is_whole=False), JUDGED),
        ("end_refused", closed(10), part(closed(10), closed(101)), JUDGED),
        ("end_refused", closed(10), part(closed(10), closed(20, uuid=2)), JUDGED),
        ("position_refused", closed(10, uuid=2), part(Position(), closed(20)), JUDGED),
        ("not_joined", closed(10), part(closed(11), closed(20)), JUDGED),
        ("nothing_new", closed(10), part(closed(10), closed(10)), JUDGED),
        ("nothing_new", closed(10), part(Position(), closed(9)), JUDGED),
    ],
)
def test_parts_that_are_left_out(reason, here, read, judged):
    assert why(here, read, judged) == reason


def test_a_partition_that_is_not_indexed_here():
    judged = {1: JUDGED[0]}
    assert why(closed(10), part(closed(10), closed(20)), judged, partition=1) == "not_indexed"
