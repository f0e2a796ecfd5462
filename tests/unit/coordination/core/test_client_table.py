"""Each request number of a session is executed once, and answered the same while it is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core import client_table
from millstream.coordination.core.client_table import (
    REPLIES_BYTES_MAX,
    REPLIES_MAX,
    WINDOW_MAX,
    ClientTable,
    Past,
    Verdict,
)

ME = b"i" * 16


def test_a_session_is_its_owners_until_it_ends() -> None:
    table = ClientTable()
    assert table.open(7, ME)
    assert table.judge(ME, 7, 1).past is Past.NEW
    assert table.judge(b"o" * 16, 7, 1).past is Past.EXPIRED
    table.close(7)
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


def test_there_is_an_end_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_table, "SESSIONS_MAX", 2)
    table = ClientTable()
    assert [table.open(session, ME) for session in (1, 2, 3)] == [True, True, False]
    assert len(table) == 2
