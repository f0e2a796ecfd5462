from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.kv.core.partition.expiry import FOREVER, Expiries, expiries_of
from millstream.wire.frames import deletion, expiration, mutation
from support.budget import budget

KEYS = [b"%d" % number for number in range(12)]


def taken(index: Expiries, now_s: int) -> list[bytes]:
    found = []
    while (key := index.next_due(now_s)) is not None:
        found.append(key)
    return found


def test_what_is_due_comes_nearest_first() -> None:
    index = Expiries(10, is_complete=True)
    for key, expiry in ((b"c", 30), (b"a", 10), (b"b", 20)):
        index.add(key, expiry)
    assert taken(index, 9) == []
    assert taken(index, 20) == [b"a", b"b"]
    assert taken(index, 20) == []
    assert len(index) == 1


def test_a_key_that_was_put_off_comes_up_once_at_its_new_time() -> None:
    index = Expiries(10, is_complete=True)
    for expiry in (10, 40, 20, 30):
        index.add(b"k", expiry)
    assert taken(index, 29) == []
    assert taken(index, 30) == [b"k"]
    assert taken(index, FOREVER) == []


def test_a_clock_that_is_set_back_forgets_nothing() -> None:
    index = Expiries(10, is_complete=True)
    index.add(b"k", 5000)
    assert taken(index, 4999) == []
    assert taken(index, 4999 - 3600) == []
    assert taken(index, 5000) == [b"k"]


def test_a_full_index_keeps_what_expires_first() -> None:
    index = Expiries(8, is_complete=True)
    for number in range(20, 0, -1):
        index.add(b"%d" % number, number)
    assert len(index) <= 8
    assert index.horizon > 6
    assert not index.needs_scan(5)
    assert taken(index, index.horizon - 1) == [b"%d" % n for n in range(1, index.horizon)]
    assert index.needs_scan(index.horizon)


def test_among_equals_a_full_index_keeps_some_so_that_scans_get_on() -> None:
    index, due, scans = Expiries(8), set[bytes](), 0
    while len(due) < 50 and scans < 10:
        index.begin_scan()
        scans += 1
        for number in range(50):
            if b"%d" % number not in due:
                index.add(b"%d" % number, 100)
        due.update(taken(index, 100))
    assert len(due) == 50


def test_keys_that_were_put_off_do_not_hide_that_others_are_missing() -> None:
    index = Expiries(5, is_complete=True)
    for key, expiry in ((b"missing", 102), (b"0", 102), (b"1", 101), (b"2", 101), (b"3", 101)):
        index.add(key, expiry)
    index.add(b"4", 101)
    index.add(b"5", 101)
    assert index.horizon == 102
    for key in (b"4", b"5"):
        index.add(key, 103)
    index.add(b"6", 101)
    assert index.horizon == 102


def test_its_heap_is_bounded_though_a_key_is_put_forth_and_back() -> None:
    index = Expiries(4, is_complete=True)
    for number in range(1000):
        index.add(b"k", 2000 - number)
    assert len(index._heap) <= 9
    assert taken(index, 1001) == [b"k"]


def test_it_tells_before_it_gets_its_first_key() -> None:
    told = list[int]()
    for act in (lambda one: one.add(b"k", 5), lambda one: one.forget()):
        index = Expiries(4, is_complete=True)
        index.on_first = lambda index=index: told.append(len(index))  # type: ignore[misc]
        act(index)
        act(index)
    assert told == [0, 0]


def test_an_index_without_room_or_before_its_scan_takes_nothing() -> None:
    index = Expiries()
    index.add(b"k", 5)
    assert not index.needs_scan(FOREVER)
    index = Expiries(4)
    index.add(b"k", 5)
    assert len(index) == 0
    assert index.needs_scan(0)
    index.begin_scan()
    index.add(b"k", 5)
    assert taken(index, 5) == [b"k"]
    index.forget()
    assert index.needs_scan(0)


def test_expiries_of_changes() -> None:
    frames = [
        mutation(3, b"never", b"v", 1, 1, 1, 0, 0, 0),
        mutation(3, b"k" * 250, b"v", 2, 1, 1, 7, 2**32 - 1, 0),
        deletion(3, b"gone", 3, 1, 1, 99),
        expiration(3, b"over", 4, 1, 1, 99),
    ]
    assert expiries_of(frames) == [(b"k" * 250, 2**32 - 1)]


class Documents(RuleBasedStateMachine):
    """An index beside the documents themselves: what is due is always found, with scans."""

    def __init__(self) -> None:
        super().__init__()
        self.index = Expiries(5)
        self.documents: dict[bytes, int] = {}
        self.now = 100

    @rule(key=st.sampled_from(KEYS), ahead=st.integers(1, 30))
    def write(self, key: bytes, ahead: int) -> None:
        self.documents[key] = self.now + ahead
        self.index.add(key, self.now + ahead)

    @rule(key=st.sampled_from(KEYS))
    def write_for_ever_or_delete(self, key: bytes) -> None:
        self.documents.pop(key, None)

    @rule(step=st.integers(-20, 20))
    def turn_the_clock(self, step: int) -> None:
        self.now = max(40, self.now + step)

    @rule()
    def page(self) -> None:
        while True:
            for key in taken(self.index, self.now):
                if self.documents.get(key, FOREVER) <= self.now:
                    del self.documents[key]
            if not self.index.needs_scan(self.now):
                break
            self.index.begin_scan()
            for key, expiry in self.documents.items():
                self.index.add(key, expiry)
        assert all(expiry > self.now for expiry in self.documents.values())

    @precondition(lambda self: self.index.horizon == FOREVER)
    @rule()
    def become_another_history(self) -> None:
        self.index.forget()

    @invariant()
    def it_is_bounded_and_complete_below_its_horizon(self) -> None:
        assert len(self.index) <= 5
        for key, expiry in self.documents.items():
            assert expiry >= self.index.horizon or self.index._by_key[key] == expiry


TestDocuments = Documents.TestCase
TestDocuments.settings = settings(max_examples=budget(60), stateful_step_count=40, deadline=None)
