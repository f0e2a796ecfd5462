"""Each request number of a session is executed once, and answered the same while it is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.vsr.core import client_table
from millstream.vsr.core.client_table import (
    REPLIES_BYTES_MAX,
    REPLIES_MAX,
    WINDOW_MAX,
    ClientTable,
    Past,
    Verdict,
)
from millstream.vsr.core.snapshots import Pieces

ME = b"i" * 16


def test_a_session_is_its_owners_until_it_ends() -> None:
    table = ClientTable()
    assert table.open(7, ME)
    assert table.judge(ME, 7, 1).past is Past.NEW
    assert table.judge(b"o" * 16, 7, 1).past is Past.EXPIRED
    assert not table.close(7, b"o" * 16)
    assert table.close(7, ME)
    assert table.judge(ME, 7, 1).past is Past.EXPIRED


def test_session_0_is_nobodys() -> None:
    table = ClientTable()
    table.store(0, 1, b"r", 9)
    assert table.judge(ME, 0, 1).past is Past.NEW


@given(st.lists(st.integers(1, 3 * WINDOW_MAX), max_size=400))
def test_nothing_is_executed_twice(asked: list[int]) -> None:
    table, executed = ClientTable(), dict[int, bytes]()
    table.open(7, ME)
    for lsn, csn in enumerate(asked):
        past, value, at = table.judge(ME, 7, csn)
        if past is Past.NEW:
            assert csn not in executed
            assert csn > max(executed, default=0) - WINDOW_MAX
            executed[csn] = b"%d" % lsn
            table.store(7, csn, executed[csn], lsn)
        elif past is Past.STORED:
            assert value == executed[csn] == b"%d" % at
        else:
            assert past is Past.GONE
            assert csn in executed or csn <= max(executed) - WINDOW_MAX


def test_replies_are_kept_in_the_order_of_storing() -> None:
    table = ClientTable()
    table.open(7, ME)
    for csn in range(1, REPLIES_MAX + 2):
        table.store(7, csn, b"r", csn)
    assert table.judge(ME, 7, 1).past is Past.GONE
    assert table.judge(ME, 7, 2) == Verdict(Past.STORED, b"r", 2)


def test_long_replies_push_out_older_ones() -> None:
    table = ClientTable()
    table.open(7, ME)
    for csn in (1, 2, 3):
        table.store(7, csn, bytes(REPLIES_BYTES_MAX // 2), csn)
    assert [table.judge(ME, 7, csn).past for csn in (1, 2, 3)] == [
        Past.GONE, Past.STORED, Past.STORED
    ]  # fmt: skip
    table.store(7, 4, bytes(2 * REPLIES_BYTES_MAX), 4)
    assert table.judge(ME, 7, 4).past is Past.STORED


def test_sessions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_table, "SESSIONS_MAX", 2)
    table = ClientTable()
    assert [table.open(session, ME) for session in (1, 2, 3)] == [True, True, False]
    assert len(table) == 2


def bytes_of(table: ClientTable) -> bytes:
    return b"".join(table.freeze())


@given(st.lists(st.tuples(st.sampled_from((3, 7)), st.integers(1, 3 * WINDOW_MAX)), max_size=99))
def test_a_restored_table_goes_on_as_the_one_that_was_frozen(asked: list[tuple[int, int]]) -> None:
    table, other = ClientTable(), ClientTable()
    table.open(3, ME)
    table.open(7, ME)
    store(table, asked[: len(asked) // 2])
    frozen = table.freeze()
    early = bytes_of(table)
    store(table, asked[len(asked) // 2 :])
    assert b"".join(frozen) == early
    other.open(99, ME)
    for _ in other.restore(Pieces([early])):
        pass
    store(other, asked[len(asked) // 2 :])
    assert bytes_of(other) == bytes_of(table)


def store(table: ClientTable, asked: list[tuple[int, int]]) -> None:
    for session, csn in asked:
        if table.judge(ME, session, csn).past is Past.NEW:
            table.store(session, csn, b"%d" % csn, csn)


def test_numbers_that_are_gone_anyway_leave_no_trace() -> None:
    """A member that was restored must have the same bytes as one that went all the way."""
    table = ClientTable()
    table.open(7, ME)
    store(table, [(7, csn) for csn in range(1, 2 * WINDOW_MAX)])
    other = ClientTable()
    for _ in other.restore(Pieces([bytes_of(table)])):
        pass
    assert bytes_of(other) == bytes_of(table)
