"""Conditions on documents, where they are worked out."""

from __future__ import annotations

import os
import threading

import pytest

from millstream.gateway.aio.parsing import SMALL_TEXT_BYTES
from millstream.gateway.aio.queries import selecting
from millstream.gateway.aio.queries.selecting import STEPS_IN_LOOP_MAX, selected
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
    monkeypatch: pytest.MonkeyPatch,
    selector: dict[str, object],
    text_bytes: int,
    *,
    is_apart: bool,
) -> None:
    threads = list[int]()
    monkeypatch.setattr(selecting, "judged", lambda *_: threads.append(threading.get_ident()))
    await selected(parse_selector(selector), (), bytes(text_bytes))
    assert (threads != [threading.get_ident()]) is is_apart


async def test_a_large_document_is_looked_at_in_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selecting, "judged", lambda *_: os.abort())
    text = b'{"n":1,"a":"%b"}' % (b"x" * SMALL_TEXT_BYTES)
    assert await selected(parse_selector({"n": 1}), (), text) is text
    assert await selected(parse_selector({"n": 1}), (("n",),), text) == b'{"n":1}'
    assert await selected(parse_selector({"n": 2}), (), text) is None
