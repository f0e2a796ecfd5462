"""Encoding and cutting records, in Python and compiled: the same bytes, the same frames."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import accelerated
from millstream.storage.core.records import ChangeColumns, StoredChange, change_record
from support.budget import budget

pytestmark = pytest.mark.skipif(not accelerated.is_installed(), reason=accelerated.state())


numbers = st.one_of(st.integers(0, 300), st.sampled_from([2**31, 2**32, 2**63 - 1, 2**64 - 1]))
sizes = st.one_of(st.integers(0, 90), st.sampled_from([300, 4096, 70_000]))
frames = st.builds(lambda size, byte: bytes([byte]) * size, sizes, st.integers(0, 255))
changes = st.tuples(frames, numbers, st.binary(max_size=40))


@st.composite
def columns(draw: st.DrawFn) -> ChangeColumns:
    found = draw(st.lists(changes, min_size=1, max_size=8))
    frames, previous, lineages = (list(column) for column in zip(*found, strict=True))
    seqnos = list(range(1, len(found) + 1))
    return ChangeColumns(
        draw(st.integers(0, 1023)), seqnos, [b"k"] * len(found), frames, previous, lineages
    )


def twin(name: str) -> accelerated.Twin:
    return next(twin for twin in accelerated.twins() if twin.name == name)


def outcome(function: Any, *arguments: Any) -> object:
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - both must fail alike
        return type(error)


@settings(max_examples=budget(100))
@given(st.lists(columns(), max_size=4))
def test_records_are_encoded_alike(batches: list[ChangeColumns]) -> None:
    parts: tuple[list[bytes], list[bytes]] = [b"head"], [b"head"]
    python, compiled = twin("encode_many").python, twin("encode_many").compiled
    assert outcome(python, batches, parts[0]) == outcome(compiled, batches, parts[1])
    assert b"".join(parts[0]) == b"".join(parts[1])


@pytest.mark.parametrize("column", ["frames", "previous_seqnos", "lineages"])
@pytest.mark.parametrize(
    "spoiled", [[], ["text"], (b"bytes",), (7,), [None], [b"x" * 65536], [2**64], [-1]]
)
def test_what_is_no_batch_is_refused_alike(column: str, spoiled: Any) -> None:
    plain = ChangeColumns(1, [1], [b"k"], [b"frame"], [0], [b"lineage"])
    batches = [plain, plain._replace(**{column: spoiled})]
    parts: tuple[list[bytes], list[bytes]] = [], []
    python, compiled = twin("encode_many").python, twin("encode_many").compiled
    assert outcome(python, batches, parts[0]) == outcome(compiled, batches, parts[1])
    assert b"".join(parts[0]) == b"".join(parts[1])


@st.composite
def reads(draw: st.DrawFn) -> tuple[bytes, int, list[int], list[int]]:
    """A piece of a segment, and the places of some of its records."""
    batch, sidecars = draw(columns()), st.one_of(st.just(b""), st.binary(max_size=9))
    written = [
        change_record(1, StoredChange(*change, draw(sidecars)), is_mark=False)
        for change in zip(batch.frames, batch.previous_seqnos, batch.lineages, strict=True)
    ]
    start = draw(st.integers(0, 99))
    data, places = b"".join(written), list(accumulate(map(len, written), initial=start))
    offsets, stops = places[:-1], places[1:]
    kept = draw(st.lists(st.booleans(), min_size=len(written), max_size=len(written)))
    offsets = [offset for offset, wanted in zip(offsets, kept, strict=True) if wanted]
    stops = [stop for stop, wanted in zip(stops, kept, strict=True) if wanted]
    match draw(st.integers(0, 5)):
        case 0:
            data = data[: draw(st.integers(0, len(data)))]
        case 1:
            spoiled = draw(st.integers(0, len(data) - 1))
            data = data[:spoiled] + bytes([data[spoiled] ^ 1]) + data[spoiled + 1 :]
        case 2:
            stops = [stop + draw(st.integers(-40, 2)) for stop in stops]
    return data, start, offsets, stops


@settings(max_examples=budget(200))
@given(reads())
def test_frames_are_cut_alike(read: tuple[bytes, int, list[int], list[int]]) -> None:
    python, compiled = twin("cut_frames").python, twin("cut_frames").compiled
    assert outcome(compiled, *read) == outcome(python, *read)


def test_checksums_agree_at_every_length() -> None:
    """Short ones go by tables, long ones 64 and 16 bytes a step."""
    frame = bytes(n * 7 & 0xFF for n in range(400))
    batch = ChangeColumns(
        1, list(range(400)), [b"k"] * 400, [frame[:n] for n in range(400)], [0] * 400, [b""] * 400
    )
    parts: tuple[list[bytes], list[bytes]] = [], []
    twin("encode_many").python([batch], parts[0])
    compiled = twin("encode_many").compiled
    assert compiled is not None
    compiled([batch], parts[1])
    assert b"".join(parts[0]) == b"".join(parts[1])
