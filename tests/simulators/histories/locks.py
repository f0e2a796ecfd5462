"""What holders of a lock may be told, in the order of the log that their tokens and versions tell.

`lock` key session: the token, or None where another holds it; `release` key session token: whether
it was held; `put` key session token value: whether it was written, the version is the write's;
`leader` key: [session, token] of the holder, or None.

Invariants:
1. Nothing right is reported: a grant whose outcome is unknown has no token here, a session of
   which nothing is heard any more may have ended.

Elsewhere: what is locked (`registers`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from simulators.histories.events import Operation

__all__ = ["disorders"]

Token = tuple[int, ...]


def disorders(operations: Sequence[Operation]) -> Iterator[str]:
    """Yield what is wrong about one lock, a line each."""
    known = [each for each in operations if each.returned is not None]
    looks = [each for each in known if each.function == "leader"]
    told = [each for each in known if each.function != "leader"]
    grants = [each for each in told if each.function == "lock" and each.result is not None]
    yield from _against_time([*grants, *(look for look in looks if look.result)])
    first: dict[Token, Operation] = {}
    for each in sorted(grants, key=lambda one: one.returned or 0):
        holder = first.setdefault(_token(each.result), each)
        if _session(holder) != _session(each):
            yield f"{each} has the token of another session: {holder}"
    turns = [first[token] for token in sorted(first)]
    yield from _outside_turns(told, turns)
    yield from _two_holders(operations, told, turns)
    yield from _seen_otherwise(operations, told, turns, looks)


def _against_time(grants: Sequence[Operation]) -> Iterator[str]:
    """Tokens only grow; who asks again while it holds is told the same."""
    moments = [(each.invoked, 0, number) for number, each in enumerate(grants)]
    moments += [(each.returned or 0, 1, number) for number, each in enumerate(grants)]
    latest: Operation | None = None
    for _, is_end, number in sorted(moments):
        each = grants[number]
        if is_end:
            if latest is None or _token_of(each) > _token_of(latest):
                latest = each
        elif latest is not None and _token_of(each) < _token_of(latest):
            yield f"{each} comes after {latest}, and its token is smaller"


def _outside_turns(told: Sequence[Operation], turns: Sequence[Operation]) -> Iterator[str]:
    """What is written under a token comes after its grant, and before any other one."""
    tokens = [_token(turn.result) for turn in turns]
    for each in told:
        if each.function == "put" and each.result:
            assert isinstance(each.version, tuple)
            at = bisect_right(tokens, each.version)
            mine = _token(each.argument[2])
            if each.version <= mine or (at and tokens[at - 1] > mine):
                yield f"{each} was written in the turn of {turns[at - 1] if at else 'nobody'}"


def _two_holders(
    operations: Sequence[Operation], told: Sequence[Operation], turns: Sequence[Operation]
) -> Iterator[str]:
    """Who is alive when another was granted the lock has at least asked to be rid of it."""
    alive, asked = _last_told(told), _let_go(operations)
    for one, other in pairwise(turns):
        granted = other.returned or 0
        let_go = asked.get((_session(one), _token(one.result)))
        if _session(one) == _session(other) or (let_go is not None and let_go < granted):
            continue
        if alive[_session(one)].invoked > granted:
            yield f"{other}, while {one} holds it and is alive: {alive[_session(one)]}"


def _seen_otherwise(
    operations: Sequence[Operation], told: Sequence[Operation], turns: Sequence[Operation],
    looks: Sequence[Operation],
) -> Iterator[str]:  # fmt: skip
    """A token is of one session; who holds it before and after somebody looks is who is seen."""
    alive, asked = _last_told(told), _let_go(operations)
    of = {_token(turn.result): _session(turn) for turn in turns}
    for look in looks:
        seen = look.result
        if seen and of.setdefault(_token(seen[1]), seen[0]) != seen[0]:
            yield f"{look}, and the token is of session {of[_token(seen[1])]}"
        before = [turn for turn in turns if (turn.returned or 0) < look.invoked]
        ended = look.returned or 0
        holder = before[-1] if before else None
        if holder is None or alive[_session(holder)].invoked < ended:
            continue
        let_go = asked.get((_session(holder), _token(holder.result)))
        holds = let_go is None or let_go > ended
        if holds and (not seen or _token(seen[1]) != _token(holder.result)):
            yield f"{look}, while {holder} holds it and is alive: {alive[_session(holder)]}"


def _last_told(told: Sequence[Operation]) -> dict[str, Operation]:
    """Return what each session asked for last, of what it was answered."""
    alive: dict[str, Operation] = {}
    for each in told:
        last = alive.get(_session(each))
        if last is None or each.invoked > last.invoked:
            alive[_session(each)] = each
    return alive


def _let_go(operations: Sequence[Operation]) -> dict[tuple[str, Token], int]:
    """Return when each first asked to be rid of what it held."""
    return {
        (_session(each), _token(each.argument[2])): each.invoked
        for each in reversed(operations)
        if each.function == "release"
    }


def _session(operation: Operation) -> str:
    return operation.argument[1]


def _token_of(operation: Operation) -> Token:
    is_look = operation.function == "leader"
    return _token(operation.result[1] if is_look else operation.result)


def _token(text: str) -> Token:
    return tuple(int(part) for part in text.split(":"))
