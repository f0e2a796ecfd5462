"""Conditions on documents, where they are worked out."""

from __future__ import annotations

import threading

import pytest

from millstream.gateway.aio.queries.selecting import STEPS_IN_LOOP_MAX, worked_out
from millstream.views.core.mango.selectors import parse_selector

PATTERN = {"a": {"$regex": "(x+y+)+z"}}


@pytest.mark.parametrize(
    ("selector", "text_bytes", "is_apart"),
    [
        ({"a": 1}, 300, False),
        (PATTERN, 100, False),
        ({"a": 1}, STEPS_IN_LOOP_MAX + 1, True),
        (PATTERN, STEPS_IN_LOOP_MAX // 2, True),
        ({"a": {"$regex": "x{900}"}}, 100, True),
        ({"$or": [{"a": n} for n in range(1000)]}, 100, True),
        ({"$not": {"a": {"$elemMatch": {"$regex": "x{900}"}}}}, 100, True),
    ],
)
async def test_what_may_take_long_of_one_document_runs_in_a_thread(
    selector: dict[str, object], text_bytes: int, *, is_apart: bool
) -> None:
    here = threading.get_ident()
    found = await worked_out(parse_selector(selector), text_bytes, threading.get_ident)
    assert (found != here) is is_apart
