"""Checkers of locks, queues and numbers: what they must find, and what they must not."""

from __future__ import annotations

from typing import Any

import pytest

from simulators.histories.check import check
from simulators.histories.events import Operation, Version

Row = tuple[str, tuple[str, ...], Any, int, int | None]


def wrong(*rows: Row, version: Version | None = None) -> list[str]:
    """Each row: function, argument behind the key, result, begin, end."""
    found = [
        Operation(f"p{number}", function, ("k", *argument), result, begin, end, version)
        for number, (function, argument, result, begin, end) in enumerate(rows)
    ]
    return list(check(found).wrong)


LOCKED = ("lock", ("s1",), "0:1:5", 0, 10)
LATER = ("lock", ("s2",), "0:1:9", 20, 30)
RELEASED = ("release", ("s1", "0:1:5"), True, 12, 14)
ALIVE = ("lock", ("s1",), None, 40, 50)
LED = ("leader", (), ["s1", "0:1:5"], 11, 12)
UNLED = ("leader", (), None, 15, 16)
PUSHED = ("push", ("v1",), "0:1:3:0", 0, 10)
TAKEN = ("take", ("s1",), [["0:1:3:0", "v1", 1]], 12, 14)
AGAIN = ("take", ("s2",), [["0:1:3:0", "v1", 2]], 16, 18)
SEEN = ("see", ("w1",), [6, "v1"], 8, 9)
DONE = ("ack", ("s1", "0:1:3:0", "1"), True, 20, 22)


@pytest.mark.parametrize(
    "rows",
    [
        [LOCKED, RELEASED, LATER, ALIVE],
        [LOCKED, LATER],  # the first session may have ended
        [LOCKED, ("release", ("s1", "0:1:5"), None, 12, None), LATER, ALIVE],
        [LOCKED, ("lock", ("s1",), "0:1:5", 12, 14)],
        [LOCKED, LED, RELEASED, UNLED, LATER, ALIVE],
        [LOCKED, LED, UNLED],
        [PUSHED, TAKEN, DONE, ("rest", (), [], 30, 40)],
        [PUSHED, TAKEN, ("rest", (), ["v1"], 30, 40)],
        [PUSHED, ("take", ("s1",), [["0:1:3:0", "v1", 1]], 5, 20)],
        [PUSHED, TAKEN, ("ack", ("s1", "0:1:3:0", "1"), None, 20, None), ("rest", (), [], 30, 40)],
        [("begin", ("w1",), 4, 0, 1), ("write", ("v1",), None, 2, None), SEEN],
        [
            ("begin", ("w1",), 4, 0, 1),
            ("write", ("v1",), None, 2, None),
            ("write", ("v2",), None, 9, None),
        ],
        [("next", (), 1, 0, 10), ("next", (), 3, 12, 20), ("next", (), None, 2, None)],
        [("next", (), 2, 0, 10), ("next", (), 1, 2, 20), ("count", (), 1, 3, 30)],
    ],
)
def test_what_can_be_is_right(rows: list[Row]) -> None:
    assert wrong(*rows) == []


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([LOCKED, LATER, ALIVE], "while"),
        ([LOCKED, ("lock", ("s2",), "0:1:5", 20, 30)], "token of another session"),
        ([LOCKED, RELEASED, ("lock", ("s2",), "0:1:4", 20, 30)], "its token is smaller"),
        ([LOCKED, UNLED, ALIVE], "while"),
        ([LOCKED, ("leader", (), ["s2", "0:1:5"], 12, 13)], "the token is of session s1"),
        ([LATER, ("leader", (), ["s1", "0:1:5"], 40, 41)], "its token is smaller"),
        ([PUSHED, ("rest", (), [], 30, 40)], "is lost"),
        ([PUSHED, TAKEN, DONE, ("rest", (), ["v1"], 30, 40)], "still there"),
        ([("begin", ("w1",), 6, 0, 1), ("write", ("v1",), None, 2, None), SEEN], "comes after"),
        ([("begin", ("w1",), 4, 0, 1), SEEN], "nobody had written"),
        (
            [
                ("begin", ("w1",), 4, 0, 1),
                ("begin", ("w2",), 4, 0, 1),
                ("write", ("v1",), None, 2, None),
                ("write", ("v0",), None, 2, None),
                SEEN,
                ("see", ("w2",), [5, "v0"], 8, 9),
            ],
            "did not hear 'v0'",
        ),
        ([PUSHED, TAKEN, AGAIN, DONE], "delivered to another since"),
        ([PUSHED, TAKEN, ("take", ("s2",), TAKEN[2], 16, 18)], "what was given to"),
        ([PUSHED, TAKEN, DONE, ("ack", ("s1", "0:1:3:0", "1"), True, 30, 40)], "what was done"),
        ([PUSHED, TAKEN, DONE, ("take", ("s2",), AGAIN[2], 24, 26)], "which was done"),
        ([TAKEN, ("push", ("v1",), "0:1:3:0", 20, 30)], "nobody had pushed"),
        ([PUSHED, ("take", ("s1",), [["0:1:4:0", "v1", 1]], 12, 14)], "under another id"),
        ([("next", (), 1, 0, 10), ("next", (), 1, 2, 12)], "was given to"),
        ([("next", (), 2, 0, 10)], "1 at most"),
        ([("next", (), 2, 0, 10), ("next", (), 1, 12, 20)], "comes after"),
        ([("next", (), 1, 0, 10), ("count", (), 0, 12, 20)], "comes after"),
    ],
)
def test_what_cannot_be_is_found(rows: list[Row], says: str) -> None:
    assert any(says in line for line in wrong(*rows))


@pytest.mark.parametrize(("lsn", "is_wrong"), [(4, True), (6, False), (10, True)])
def test_writes_with_a_token_are_in_the_order_of_tokens(lsn: int, is_wrong: bool) -> None:
    put = ("put", ("s1", "0:1:5", "v"), True, 0, 90)
    found = wrong(LOCKED, RELEASED, LATER, put, version=(0, 1, lsn))
    assert bool(found) is is_wrong
    assert not found or "in the turn of" in found[0]
