"""A new view begins with the log of the newest view; only what cannot be committed is given up."""

from millstream.vsr.core.log import Log
from millstream.vsr.core.messages import DoViewChange
from millstream.vsr.core.replica.log_choice import choose, contradiction
from support.coordination.coordination_logs import log_of


def vote(log: Log, view: int, commit: int = 0) -> DoViewChange:
    digest = log.hash_at(commit)
    assert digest is not None
    return DoViewChange(0, view, log.op_lsn, log.head.hash, commit, digest, log.marks(commit))


def test_the_log_of_the_newest_view_counts_then_the_longest() -> None:
    old, new, longer = log_of("axyz"), log_of("ab"), log_of("abc")
    votes = [vote(old, 1, 1), vote(longer, 2), vote(new, 2)]
    assert choose(votes, 5) == (3, longer.head.hash, 1)
    assert choose(votes[::2], 3) == (2, new.head.hash, 1)


def test_a_damaged_entry_that_somebody_has_whole_is_kept() -> None:
    damaged, whole = log_of("abc", (3,)), log_of("abc")
    assert choose([vote(damaged, 1), vote(whole, 1)], 3) == (3, whole.head.hash, 0)


def test_a_damaged_entry_is_given_up_only_if_enough_never_had_it() -> None:
    damaged, short = log_of("abc", (3,)), log_of("ab")
    assert choose([vote(damaged, 1), vote(short, 1)], 3) is None
    votes = [vote(damaged, 1), vote(short, 1), vote(short, 1)]
    assert choose(votes, 3) == (2, short.head.hash, 0)


def test_a_damaged_record_of_something_else_shows_nothing() -> None:
    damaged = log_of("abc", (3,))
    other = log_of("abx", (3,))
    assert choose([vote(damaged, 2), vote(other, 1), vote(log_of("ab"), 1)], 3) is None
    whole = log_of("abx")
    votes = [vote(damaged, 2), vote(whole, 1), vote(log_of("ab"), 1)]
    assert choose(votes, 3) == (2, log_of("ab").head.hash, 0)


def test_a_committed_entry_is_never_given_up() -> None:
    damaged = log_of("abc", (3,))
    votes = [vote(damaged, 1, 2), vote(log_of("abc", (3,)), 1, 3), vote(log_of("ab"), 1)]
    assert choose(votes, 3) == (3, damaged.head.hash, 3)


def test_a_broken_promise_is_not_built_upon() -> None:
    assert "shorter" in contradiction([vote(log_of("ab"), 2), vote(log_of("abc"), 1, 3)])
    assert "lacks" in contradiction([vote(log_of("abc"), 2), vote(log_of("axx"), 1, 2)])
    assert contradiction([vote(log_of("abc"), 2), vote(log_of("abx"), 1, 2)]) == ""
