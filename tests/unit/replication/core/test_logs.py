"""Logs of replications, ours and others'."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.documents.tokens import History, Vector
from millstream.model.position import FailoverEntry, Position
from millstream.replication.core.logs import (
    HISTORY_ENTRIES_MAX,
    Entry,
    Statistics,
    compare,
    extended,
    held_body,
    http_date,
    parse_log,
    smaller,
    thinned,
)
from millstream.replication.core.places import NOWHERE, Place, Present

NAMES = {"source_uuid": "a", "target_uuid": "b", "members": ()}


def at(seqno, uuid=1):
    return Position(uuid, seqno, seqno, seqno)


def place(*seqnos):
    vector = Vector(7, tuple(at(n) if n else Position() for n in seqnos))
    return Place(vector.text(), vector)


def log_of(*entries):
    body = None
    for entry in entries:
        body = extended(body, entry, **NAMES)
    return body


def test_an_entry_comes_back_as_it_was_written():
    entry = Entry("c", place(3, 4), place(5, 0).vector, True, True, ("x",), 2, "cov-1", {"n": 1})
    log = parse_log(log_of(entry))
    assert log.entries == (entry,)
    assert (log.source_uuid, log.target_uuid) == ("a", "b")


def test_couchdbs_and_pouchdbs_logs_are_read():
    couchdb = {"session_id": "s2", "source_last_seq": "9-x", "history": [
        {"session_id": "s2", "recorded_seq": "9-x", "docs_read": 3},
        {"session_id": "s1", "recorded_seq": 4}]}  # fmt: skip
    assert [(e.ckpt_id, e.place.seq) for e in parse_log(couchdb).entries] == [
        ("s2", "9-x"), ("s1", 4),
    ]  # fmt: skip
    pouchdb = {"session_id": "p", "last_seq": 5, "version": 1, "replicator": "pouchdb",
               "history": [{"session_id": "q", "last_seq": 2}]}  # fmt: skip
    assert [(e.ckpt_id, e.place.seq) for e in parse_log(pouchdb).entries] == [("p", 5), ("q", 2)]
    assert not any(e.is_complete for e in parse_log(pouchdb).entries)


def test_nonsense_is_no_log():
    assert parse_log(None).entries == ()
    assert parse_log({"history": 5, "filter": 3}).entries == ()
    assert parse_log({"history": [1, {"session_id": 3}, {"session_id": "x"}]}).entries == ()
    odd = {"history": [{"session_id": "x", "recorded_seq": 1, "source_vec": {"positions": 1},
                        "target_vec": 3, "except": 5, "complete": True}]}  # fmt: skip
    (entry,) = parse_log(odd).entries
    assert entry.place == Place(1)
    assert not entry.is_complete


def test_the_newest_common_checkpoint_counts():
    one, two, three = (Entry(name, place(n, n)) for name, n in (("1", 1), ("2", 2), ("3", 3)))
    both = compare(parse_log(log_of(one, two, three)), parse_log(log_of(one, two)))
    assert both.place == two.place
    assert compare(parse_log(log_of(one)), parse_log(log_of(two))) is None
    assert compare(parse_log(None), parse_log(log_of(one))) is None


def test_of_one_checkpoint_the_smaller_place_counts():
    assert smaller(place(3, 1), place(2, 5)) == place(2, 1)
    assert smaller(Place("9-a"), Place("7-b")) == Place("7-b")
    assert smaller(Place("9-a"), Place("9-a")) == Place("9-a")
    assert smaller(place(3, 1), place(3)) == NOWHERE


def test_a_target_shows_only_what_it_still_holds():
    present = Present("b", (History((FailoverEntry(2, 4, 2), FailoverEntry(1, 0, 1)), 6, 0),))
    kept = Entry("k", place(1, 1), Vector(0, (at(4),)))
    lost = Entry("l", place(2, 2), Vector(0, (at(5),)))
    shown = held_body({**log_of(kept, lost), "_rev": "0-2"}, present)
    assert [e.ckpt_id for e in parse_log(shown).entries] == ["k"]
    assert (shown["session_id"], shown["_rev"]) == ("k", "0-2")
    assert held_body(log_of(lost), present) is None
    assert held_body(log_of(kept), present) == log_of(kept)
    assert held_body(None, present) is None
    elsewhere = present._replace(uuid="a")
    assert held_body(log_of(lost), elsewhere) == log_of(lost)
    assert held_body({"target_uuid": "b"}, present) == {"target_uuid": "b"}


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=200))
def test_thinning_keeps_the_ends_of_each_power_of_two(steps):
    numbers = sorted(steps, reverse=True)
    entries = [Entry(str(i), Place(n)) for i, n in enumerate(numbers)]
    kept = thinned(entries)
    assert kept[0] == entries[0]
    assert len(kept) <= min(HISTORY_ENTRIES_MAX, 2 * 13)
    assert kept[-1] == entries[-1]
    assert thinned(kept) == kept


def test_nothing_is_thinned_to_nothing():
    assert thinned([]) == []


def test_figures_and_times():
    assert Statistics(1, 2).plus(Statistics(1, 1, 1)) == Statistics(2, 3, 1)
    assert http_date(0) == "Thu, 01 Jan 1970 00:00:00 GMT"
