"""Stored design documents are read once for each revision."""

import asyncio
import json

import pytest

from millstream.databases import design_reading
from millstream.databases.design_reading import SMALL_BYTES, known_design
from millstream.errors import UsageError
from millstream.kv.core.revisions.design_documents import StoredDesign


def stored(content, rev):
    return StoredDesign("x", rev, json.dumps(content).encode(), False, 0, 7, True)


@pytest.fixture
def calls(monkeypatch):
    made, run = [], design_reading.run_apart

    async def counted(function, *arguments):
        made.append(function)
        return await run(function, *arguments)

    monkeypatch.setattr(design_reading, "run_apart", counted)
    return made


async def test_a_large_one_is_read_elsewhere_and_once(calls):
    one = stored({"filters": {"f": "x" * SMALL_BYTES}}, "1-a")
    found = await asyncio.gather(*(known_design("b", one) for _ in range(3)))
    assert found[0].code.filters == {"f"}
    assert await known_design("b", one) is found[0]
    assert len(calls) == 1
    await known_design("b", stored({"filters": {"g": "x" * SMALL_BYTES}}, "2-a"))
    assert len(calls) == 2


async def test_a_small_one_is_read_here(calls):
    assert (await known_design("b", stored({"filters": {"f": "x"}}, "1-b"))).code.filters == {"f"}
    with pytest.raises(UsageError):
        await known_design("b", stored([], "1-c"))
    assert not calls


async def test_what_is_kept_is_bounded(monkeypatch):
    kept = design_reading.KnownDesigns()
    monkeypatch.setattr(design_reading, "KEPT_BYTES_MAX", 3 * SMALL_BYTES)
    for number in range(20):
        await kept.of("b", stored({"filters": {"f": "x" * (SMALL_BYTES // 2)}}, f"{number}-d"))
    assert 1 <= len(kept._known) <= 6
    assert kept._size <= 3 * SMALL_BYTES
