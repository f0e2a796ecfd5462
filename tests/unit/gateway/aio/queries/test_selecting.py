"""Conditions on documents, where they are worked out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from millstream.gateway.aio.parsing import SMALL_TEXT_BYTES
from millstream.gateway.aio.queries import selecting
from millstream.gateway.aio.queries.selecting import (
    SENT_TOGETHER_BYTES_MAX,
    STEPS_IN_LOOP_MAX,
    selected,
    which_pass,
)
from millstream.gateway.core.mango_answers import LargeSelector
from millstream.runtime.long_calls import run_apart
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


@pytest.mark.parametrize("is_large_selector", [False, True])
async def test_large_documents_are_sent_together_as_they_are(
    monkeypatch: pytest.MonkeyPatch, *, is_large_selector: bool
) -> None:
    sent = list[list[int]]()

    async def run(call: Callable[..., list[bool]], *arguments: Any) -> list[bool]:
        sent.append([len(pieces[-1]) for pieces in arguments[1]])
        return await run_apart(call, *arguments)

    monkeypatch.setattr(selecting, "run_apart", run)
    selector = LargeSelector(b'{"selector":{"n":1}}', has_fields=False)
    sizes = [7, 300_000, 9, 300_000, 300_000, 5_000_000, 8, 300_000]
    documents = [
        (b'{"n":%d,"a":"' % (at % 2), memoryview(b'%b"}' % (b"x" * size))[:]) if size > 100
        else (b'{"n":%d}' % (at % 2),)
        for at, size in enumerate(sizes)
    ]  # fmt: skip
    found = await which_pass(
        selector if is_large_selector else parse_selector({"n": 1}), documents
    )
    assert found == [bool(at % 2) for at in range(8)]
    assert sum(len(one) for one in sent) == (8 if is_large_selector else 5)
    assert len(sent) == 3
    assert all(sum(one) <= SENT_TOGETHER_BYTES_MAX or len(one) == 1 for one in sent)
