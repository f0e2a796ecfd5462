"""What is missing is asked for by hash, from the end downwards, and put in place in one step."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.vsr.core.entries import Entry, Link
from millstream.vsr.core.replica.repair import AGAIN_MS, AGAIN_MS_MAX, Asking, NewEnd, Repair
from millstream.vsr.core.snapshots import snapshot_of
from support.coordination.coordination_logs import chained, log_of


def test_nothing_is_missing_of_a_log_that_has_the_end() -> None:
    repair = Repair(log_of("abc"), 2, chained("ab")[1].header.hash)
    assert repair.wanted is None
    assert repair.result() == NewEnd(2, ())


def test_entries_that_nobody_asked_for_are_not_taken() -> None:
    wanted = chained("abc")
    repair = Repair(log_of("a"), 3, wanted[2].header.hash)
    repair.offer(chained("axyz"))
    assert repair.wanted is not None
    assert repair.wanted[:2] == (3, wanted[2].header.hash)


def test_entries_fetched_for_another_goal_are_not_requested_again() -> None:
    spare: dict[int, Entry] = {}
    first, later = chained("abcd"), chained("abcde")
    Repair(log_of("axyz"), 4, first[3].header.hash, spare).offer(first[2:])
    repair = Repair(log_of("axyz"), 5, later[4].header.hash, spare)
    repair.offer(later[4:])
    assert repair.wanted is not None
    assert repair.wanted.lsn == 2
    repair = Repair(log_of("axyz"), 4, chained("akmn")[3].header.hash, spare)
    assert repair.wanted is not None
    assert repair.wanted.lsn == 4


def test_a_log_that_went_another_way_is_cut_where_they_part() -> None:
    wanted = chained("abcd")
    repair = Repair(log_of("abxyz"), 4, wanted[3].header.hash)
    repair.offer(wanted[3:])
    assert repair.wanted is not None
    assert repair.wanted.lsn == 3
    repair.offer(wanted[:3])
    assert repair.wanted is None
    assert repair.result() == NewEnd(2, tuple(wanted[2:]))


@given(st.text("ab", max_size=8), st.text("ab", min_size=1, max_size=8), st.data())
def test_the_result_is_the_log_that_was_meant(own: str, meant: str, data: st.DataObject) -> None:
    holes = data.draw(st.sets(st.integers(1, len(own)))) if own else set()
    log, entries = log_of(own, tuple(holes)), chained(meant)
    repair = Repair(log, len(entries), entries[-1].header.hash)
    while wanted := repair.wanted:
        assert entries[wanted.lsn - 1].header.hash == wanted.hash
        first = data.draw(st.integers(max(0, wanted.lsn - wanted.number), wanted.lsn - 1))
        repair.offer(entries[first : wanted.lsn])
    log.replace_above(*repair.result()[:2])
    assert [log.entry_at(lsn) for lsn in range(1, log.op_lsn + 1)] == entries


def test_the_same_is_asked_for_again_only_when_an_answer_could_have_come() -> None:
    asking = Asking()
    assert asking.is_due("one", 0.0)
    assert not asking.is_due("one", AGAIN_MS - 1)
    assert asking.waits(AGAIN_MS - 1)
    assert asking.is_due("one", AGAIN_MS)
    assert not asking.is_due("one", 3 * AGAIN_MS - 1), "each try waits twice as long"
    assert asking.is_due("one", 3 * AGAIN_MS)
    assert asking.is_due("two", 4 * AGAIN_MS), "the answer took so long"
    assert not asking.is_due("two", 12 * AGAIN_MS - 1)
    asking.forget()
    assert asking.is_due("two", 12 * AGAIN_MS)


def test_an_answer_that_took_long_costs_a_bounded_wait_and_an_old_one_none() -> None:
    asking = Asking()
    for number in range(20):
        asking.is_due("one", number * 10_000.0)
    assert not asking.is_due("one", 190_000.0 + AGAIN_MS_MAX - 1)
    assert asking.is_due("one", 190_000.0 + AGAIN_MS_MAX)
    assert asking.is_due("two", 900_000.0)
    assert asking.is_due("two", 900_000.0 + AGAIN_MS)


def test_a_snapshot_of_another_log_is_told_of() -> None:
    """It ended the process: a later view may have dropped the end that is fetched."""
    wanted, other = chained("abcd"), chained("abx")
    repair = Repair(log_of("a"), 4, wanted[3].header.hash)
    repair.use(snapshot_of(1, other[2].header.link, b"state"))
    assert repair.wanted is not None
    repair.offer(wanted)
    assert repair.is_of_another_log
    assert repair.wanted is None


def test_a_chain_that_begins_elsewhere_is_told_of() -> None:
    wanted = chained("ab", Link(0, b"?" * 16, 0))
    repair = Repair(log_of("x"), 2, wanted[1].header.hash)
    assert not repair.is_of_another_log
    repair.offer(wanted)
    assert repair.is_of_another_log
    assert repair.wanted is None
