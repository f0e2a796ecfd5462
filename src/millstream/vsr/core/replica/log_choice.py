"""Choosing the log that a new view begins with, out of the votes of a quorum.

Invariants:
1. The log of the highest `last_normal` is chosen, of those the longest. It has all that an
   earlier view committed.
2. An entry is dropped, with all behind it, only if it is above every known commit, no voter has
   it whole, and enough whole records show another entry there, or none, that it cannot have been
   committed. A damaged record shows nothing.
3. What voters say is committed is in the chosen log. Else somebody broke a promise, and no log is
   chosen.

Elsewhere: collecting votes (`view_change`), fetching entries (`log_repair`).

Source: Liskov and Cowling 2012, section 4.2; Alagappan et al. 2018, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millstream.vsr.core.messages import DoViewChange

__all__ = ["Choice", "choose", "contradiction"]


class Choice(NamedTuple):
    """The end of the chosen log, and how far the voters know it to be committed."""

    lsn: int
    hash: bytes
    commit_lsn: int


def choose(votes: Sequence[DoViewChange], members: int) -> Choice | None:
    """Return the log to begin with. None if more members have to be heard.

    Args:
        votes: one per member that voted, of one view, at least a quorum; no `contradiction`.
        members: how many the group has.
    """
    best = _best(votes)
    commit_lsn = max(vote.commit_lsn for vote in votes)
    nacks_needed = members - (members // 2 + 1) + 1
    for lsn in range(max(commit_lsn, best.commit_lsn) + 1, best.op_lsn + 1):
        digest = _hash_at(best, lsn)
        assert digest is not None
        if any(_has(vote, lsn, digest) for vote in votes):
            continue
        if _nacks(votes, lsn, digest) < nacks_needed:
            return None
        below = _hash_at(best, lsn - 1)
        assert below is not None
        return Choice(lsn - 1, below, commit_lsn)
    return Choice(best.op_lsn, best.op_hash, commit_lsn)


def contradiction(votes: Sequence[DoViewChange]) -> str:
    """Return how votes contradict what their voters promised. Empty if they do not."""
    best = _best(votes)
    if max(vote.commit_lsn for vote in votes) > best.op_lsn:
        return "the chosen log is shorter than what is committed"
    return "" if _agree(best, votes) else "the chosen log lacks what is committed"


def _best(votes: Iterable[DoViewChange]) -> DoViewChange:
    return max(votes, key=lambda vote: (vote.last_normal, vote.op_lsn))


def _agree(best: DoViewChange, votes: Iterable[DoViewChange]) -> bool:
    return all(_hash_at(best, vote.commit_lsn) in (None, vote.commit_hash) for vote in votes)


def _hash_at(vote: DoViewChange, lsn: int) -> bytes | None:
    if lsn == vote.commit_lsn:
        return vote.commit_hash
    if vote.commit_lsn < lsn <= vote.op_lsn:
        return vote.marks[lsn - vote.commit_lsn - 1].hash
    return None


def _has(vote: DoViewChange, lsn: int, digest: bytes) -> bool:
    if not vote.commit_lsn < lsn <= vote.op_lsn:
        return False
    mark = vote.marks[lsn - vote.commit_lsn - 1]
    return mark.whole and mark.hash == digest


def _nacks(votes: Iterable[DoViewChange], lsn: int, digest: bytes) -> int:
    """Count the voters that never acknowledged it: all is whole there from the commit to `lsn`."""
    return sum(1 for vote in votes if _never_had(vote, lsn, digest))


def _never_had(vote: DoViewChange, lsn: int, digest: bytes) -> bool:
    if lsn > vote.op_lsn:
        return True
    mark = vote.marks[lsn - vote.commit_lsn - 1]
    return mark.whole and mark.hash != digest
