"""What a database has of others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.documents.tokens import History, Vector
from millstream.model.position import FailoverEntry, Position
from millstream.replication.core import coverage
from millstream.replication.core.coverage import (
    HOPS_MAX,
    PER_LOG_MAX,
    RECORD_DAYS_MAX,
    Claim,
    Record,
    accepted,
    carried,
    emitted,
    kept,
    may_be_carried,
    member_of_json,
    member_to_json,
    own_records,
    record_of_json,
    record_to_json,
    serves,
    still_valid,
    verified,
    verified_by_log,
)
from millstream.replication.core.jobs import Member
from millstream.replication.core.logs import EXCEPTIONS_MAX, Entry, Log
from millstream.replication.core.places import Place, Present

LOG = (FailoverEntry(1, 0, 1),)
HOLDER = Present("holder", (History(LOG, 10, 0),))
CONTENT = Member("content", signature="x")
IDS = Member("ids", ("a", "b"))
DAY_MS = 86_400_000


def at(seqno, uuid=1):
    return Position(uuid, seqno, seqno, seqno)


def vector(*seqnos):
    return Vector(HOLDER.origin, tuple(at(n) if n else Position() for n in seqnos))


def place(*seqnos):
    return Place(vector(*seqnos).text(), vector(*seqnos))


RECORD = Record("origin", "log", "ckpt", place(3, 4), vector(5))


def entry(**other):
    told = {"is_closed": True, "is_complete": True, "target_vec": vector(6)} | other
    return Entry("c", place(9), **told)


def carry(records, at=None, member=None, source="middle", target="holder"):
    return carried(records, at or entry(), member, source=source, target=target, now_ms=0)


def test_records_come_back_as_they_were_written():
    record = RECORD._replace(members=(IDS, CONTENT, Member("design")), exceptions=("x",),
                             via=("b",), hops=2, purge_epoch=3, created_ms=5.0)  # fmt: skip
    assert record_of_json(record_to_json(record)) == record
    opaque = record._replace(place=Place("5-x"))
    assert record_of_json(record_to_json(opaque)) == opaque


@pytest.mark.parametrize("form", [
    None, 5, {}, record_to_json(RECORD) | {"stamp": 3}, record_to_json(RECORD) | {"hops": 0},
    record_to_json(RECORD) | {"via": [3]}, record_to_json(RECORD) | {"filter": 3},
    record_to_json(RECORD) | {"hops": HOPS_MAX + 1}, record_to_json(RECORD) | {"created": "x"},
])  # fmt: skip
def test_nonsense_is_no_record(form):
    assert record_of_json(form) is None


def test_an_unknown_member_is_implied_by_nothing():
    unknown = member_of_json({"new kind": 1})
    assert member_of_json(member_to_json(unknown)) == unknown
    assert not serves(RECORD._replace(members=(unknown,)), None)
    assert not serves(RECORD._replace(members=(unknown,)), IDS)


def test_own_logs_prove_what_is_complete_and_closed():
    entries = (
        entry(), entry(is_closed=False), entry(is_complete=False), entry(target_vec=None),
    )  # fmt: skip
    logs = {
        "in": Log(entries, "origin", "holder", ({"ids": ["a"]},)),
        "out": Log(entries, "holder", "elsewhere"),
        "foreign": Log(entries, "", "holder"),
    }
    (found,) = own_records(logs, HOLDER)
    assert (found.origin, found.log, found.hops) == ("origin", "in", 1)
    assert found.members == (Member("ids", ("a",)),)
    copied = HOLDER._replace(uuid="copy", ancestors=("holder",))
    assert len(own_records(logs, copied)) == 1


def test_a_reader_hears_what_it_has_reached():
    assert emitted([RECORD], HOLDER, vector(5), "reader") == [RECORD]
    assert emitted([RECORD], HOLDER, vector(4), "reader") == []
    assert emitted([RECORD], HOLDER, vector(11), "reader") == []
    inside = Vector(HOLDER.origin, (Position(1, 6, 3, 9),))
    assert emitted([RECORD], HOLDER, inside, "reader") == []


@pytest.mark.parametrize("other", [
    {"origin": "reader"}, {"via": ("reader",)}, {"hops": HOPS_MAX}, {"purge_epoch": 1},
    {"stamp": vector(5)._replace(positions=(at(5, uuid=9),))},
])  # fmt: skip
def test_what_is_not_told(other):
    assert emitted([RECORD._replace(**other)], HOLDER, vector(9), "reader") == []


def test_carrying_adds_the_hop():
    record = RECORD._replace(exceptions=("x",))
    (found,) = carry([record], entry(exceptions=("y",), purge_epoch=4), IDS)
    assert found.via == ("middle",)
    assert (found.hops, found.purge_epoch, found.stamp) == (2, 4, vector(6))
    assert (found.exceptions, found.members) == (("x", "y"), (IDS,))
    assert carry([found], member=IDS, source="more")[0].members == (IDS,)


@pytest.mark.parametrize("other", [
    {"is_closed": False}, {"is_complete": False}, {"target_vec": None},
    {"exceptions": tuple(map(str, range(EXCEPTIONS_MAX + 1)))},
])  # fmt: skip
def test_only_complete_and_closed_checkpoints_carry(other):
    assert carry([RECORD], entry(**other)) == []


def test_no_later_hop_looks_inside_and_none_goes_in_circles():
    assert carry([RECORD], member=CONTENT) == []
    assert carry([RECORD], target="origin") == []
    assert carry([RECORD._replace(via=("holder",))]) == []
    assert carry([RECORD._replace(hops=HOPS_MAX)]) == []


def test_a_rollback_or_a_purge_ends_records():
    assert still_valid([RECORD], HOLDER) == [RECORD]
    assert still_valid([RECORD], HOLDER._replace(purge_epoch=1)) == []
    assert still_valid([RECORD], HOLDER._replace(histories=(History(LOG, 4, 0),))) == []


def test_of_one_checkpoint_the_older_stamp_stays():
    newer = RECORD._replace(stamp=vector(7))
    assert accepted([RECORD], [newer], HOLDER, 0) == [RECORD]
    better = newer._replace(exceptions=())
    worse = RECORD._replace(exceptions=("x",))
    assert accepted([worse], [better], HOLDER, 0) == [better]
    assert accepted([], [RECORD._replace(origin="holder")], HOLDER, 0) == []


def test_old_records_go():
    old = RECORD._replace(created_ms=0.0)
    assert kept([old], HOLDER, RECORD_DAYS_MAX * DAY_MS) == [old]
    assert kept([old], HOLDER, RECORD_DAYS_MAX * DAY_MS + 1) == []


def test_what_another_log_says_better_goes():
    less = RECORD._replace(log="other", ckpt="o", place=place(2, 4))
    assert kept([less, RECORD], HOLDER, 0) == [RECORD]
    later = RECORD._replace(stamp=vector(8))
    assert set(kept([less, later], HOLDER, 0)) == {less, later}
    narrower = RECORD._replace(members=(IDS,))
    assert set(kept([less, narrower], HOLDER, 0)) == {less, narrower}


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60, unique=True))
def test_of_one_log_few_stay_the_newest_among_them(numbers):
    records = [RECORD._replace(ckpt=str(n), place=place(n, 0)) for n in sorted(numbers)]
    found = kept(records, HOLDER, 0)
    assert len(found) <= PER_LOG_MAX
    assert records[-1] in found


def test_the_set_is_bounded(monkeypatch):
    monkeypatch.setattr(coverage, "RECORDS_MAX", 2)
    records = [RECORD._replace(origin=str(n), created_ms=float(n)) for n in range(4)]
    assert kept(records, HOLDER, 4) == records[2:]


def test_whom_a_record_serves():
    assert serves(RECORD, None)
    assert serves(RECORD, IDS)
    narrow = RECORD._replace(members=(IDS,))
    assert not serves(narrow, None)
    assert serves(narrow, Member("ids", ("a",)))
    assert not serves(narrow, Member("ids", ("a", "c")))
    assert not serves(narrow._replace(members=(IDS, CONTENT)), IDS)
    assert serves(RECORD, CONTENT)
    assert not serves(RECORD._replace(exceptions=("x",)), CONTENT)


ORIGIN = Present("origin", (History((FailoverEntry(2, 6, 2), *LOG), 9, 0),))
CLAIM = Claim("log", "c", place(8), looks_inside=False)


def log_at(seqno, uuid="origin"):
    return Log((Entry("c", place(seqno)),), uuid, "b")


def seqno_of(claim, log, present=ORIGIN):
    found = verified(claim, log, present)
    return None if found is None else found.positions[0].seqno


def test_the_origin_confirms_its_present_line_only():
    assert seqno_of(CLAIM, log_at(8)) == 6
    assert seqno_of(CLAIM, log_at(3)) == 3
    assert seqno_of(CLAIM._replace(place=place(4)), log_at(8)) == 4
    assert seqno_of(CLAIM._replace(looks_inside=True), log_at(8)) == 0
    purged = place(8).vector._replace(purge_epoch=1)
    assert seqno_of(CLAIM._replace(place=Place("", purged)), log_at(8)) == 0


def test_the_origin_confirms_no_checkpoint_that_it_does_not_know():
    assert seqno_of(CLAIM, None) is None
    assert seqno_of(CLAIM._replace(ckpt="d"), log_at(8)) is None
    assert seqno_of(CLAIM, log_at(8, uuid="else")) is None
    assert seqno_of(CLAIM._replace(place=Place("8-x")), log_at(8)) is None
    assert seqno_of(CLAIM._replace(place=place(8, 8)), log_at(8)) is None
    assert seqno_of(CLAIM, log_at(8), ORIGIN._replace(uuid="new", ancestors=("origin",))) == 6


def test_a_log_confirms_for_who_tells_no_vectors():
    claim = CLAIM._replace(place=Place("9-x"))
    assert verified_by_log(claim, Log((Entry("c", Place("7-y")),))) == Place("7-y")
    assert verified_by_log(claim, Log(())) is None


PAIR = Present("holder", (History(LOG, 10, 0), History(LOG, 10, 0)))
HALF = RECORD._replace(place=place(3, 0))
WIDE = RECORD._replace(stamp=vector(5, 6))


def test_parts_of_a_record_are_told_where_partitions_are_equal():
    def told(*seqnos, record=WIDE, **options):
        return emitted([record], PAIR, vector(*seqnos), "reader", takes_parts=True, **options)

    assert told(5, 6) == [WIDE]
    assert told(9, 5) == [HALF._replace(stamp=WIDE.stamp)]
    assert told(4, 5) == []
    assert emitted([WIDE], PAIR, vector(9, 5), "reader") == []
    assert told(9, 5, record=WIDE._replace(place=place(0, 4))) == []  # nothing is left
    assert told(9, 5, record=WIDE._replace(place=place(3, 4, 5))) == []
    assert told(9, 5, record=WIDE._replace(place=Place("7-x"))) == []
    assert told(9, 5, record=WIDE._replace(origin="reader")) == []
    inside = Vector(PAIR.origin, (at(9), Position(1, 7, 2, 9)))
    (part,) = emitted([WIDE], PAIR, inside, "reader", takes_parts=True)
    assert part.place.vector == vector(3, 0)
    assert part.name == WIDE.name
    cut = PAIR._replace(histories=(History(LOG, 10, 0), History(LOG, 5, 0)))
    assert emitted([WIDE], cut, vector(5, 5), "reader", takes_parts=True) == [part]


def test_parts_are_carried_by_what_is_closed_there():
    inside = Vector(HOLDER.origin, (at(9), Position(1, 7, 2, 9)))
    open_entry = entry(is_closed=False)._replace(place=Place(inside.text(), inside))
    (found,) = carry([HALF], open_entry)
    assert (found.place, found.stamp) == (HALF.place, vector(6))
    assert carry([RECORD], open_entry) == []
    assert carry([HALF], open_entry._replace(is_complete=False)) == []
    assert carry([HALF._replace(place=place(3))], open_entry) == []
    assert carry([HALF._replace(place=Place("3-x"))], open_entry) == []
    assert may_be_carried(RECORD, Place("9-x"), is_closed=True)


def test_a_part_makes_room_for_the_whole():
    later = RECORD._replace(stamp=vector(7), exceptions=("x",))
    assert accepted([HALF], [later], HOLDER, 0) == [later]
    assert accepted([later], [HALF], HOLDER, 0) == [later]
    other = RECORD._replace(place=place(0, 4), stamp=vector(8))
    assert accepted([HALF], [other], HOLDER, 0) == [other]
