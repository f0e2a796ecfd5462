"""Entries read, checked and written, in Python and compiled: the same entries, bytes, errors."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import accelerated
from millstream.vsr.core.entries import (
    BODY_BYTES_MAX,
    GENESIS,
    Body,
    Entry,
    Kind,
    Link,
    chain,
    encode_body,
    encode_entry,
    hash_of,
)
from support.budget import budget

pytestmark = pytest.mark.skipif(not accelerated.is_installed(), reason=accelerated.state())

GROUP, OTHER = b"g" * 16, b"h" * 16
numbers = st.one_of(st.integers(0, 300), st.sampled_from([2**63 - 1, 2**63, 2**64 - 1]))
ids = st.sampled_from([bytes(16), b"i" * 16, b"j" * 16])
bodies = st.builds(
    Body, st.binary(max_size=9), st.just(()), st.lists(st.binary(max_size=300)).map(tuple)
)


links = st.builds(Link, st.integers(0, 2**64 - 20), st.binary(min_size=16, max_size=16), numbers)


@st.composite
def logs(draw: st.DrawFn) -> tuple[Link, list[Entry]]:
    """Entries of one chain, or with a break in it, and what they hang on."""
    begin = link = draw(st.one_of(st.just(GENESIS), links))
    found = []
    for _ in range(draw(st.integers(0, 6))):
        found.append(
            chain(
                link, group_id=draw(st.sampled_from([GROUP, GROUP, GROUP, OTHER])),
                epoch=draw(st.integers(0, 2**32 - 1)), view=draw(st.integers(0, 2**32 - 1)),
                kind=draw(st.sampled_from(Kind)), ts_ms=draw(numbers), body=draw(bodies),
                instance=draw(ids), session=draw(numbers), csn=draw(numbers),
                claim=draw(st.booleans()),
            )
        )  # fmt: skip
        if draw(st.integers(0, 9)):
            link = found[-1].header.link
    return begin, found


def twin(name: str) -> accelerated.Twin:
    return next(twin for twin in accelerated.twins() if twin.name == name)


def outcome(function: Any, *arguments: Any) -> object:
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - both must fail alike
        return type(error), str(error)


def same(name: str, *arguments: Any) -> object:
    """Return what both answer."""
    python, compiled = twin(name).python, twin(name).compiled
    answer = outcome(python, *arguments)
    assert outcome(compiled, *arguments) == answer
    return answer


@settings(max_examples=budget(150))
@given(logs(), st.binary(max_size=20), st.binary(max_size=20), st.integers(-1, 8))
def test_entries_are_read_alike(
    log: tuple[Link, list[Entry]], before: bytes, behind: bytes, count: int
) -> None:
    data = before + b"".join(map(encode_entry, log[1])) + behind
    answer = same("decode_entries", data, len(before), count)
    if 0 <= count <= len(log[1]):
        assert isinstance(answer, tuple)
        assert answer[0] == tuple(log[1][:count])
        assert all(type(entry) is Entry for entry in answer[0])
        assert all(type(entry.header.kind) is Kind for entry in answer[0])
        assert all(type(entry.header.claim) is bool for entry in answer[0])


@settings(max_examples=budget(150))
@given(logs(), st.data())
def test_damaged_and_strange_entries_are_refused_alike(
    log: tuple[Link, list[Entry]], data: st.DataObject
) -> None:
    whole = bytearray(b"".join(map(encode_entry, log[1])))
    if whole:
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(whole)))
    same("decode_entries", bytes(whole), 0, len(log[1]))
    same("decode_entries", bytes(whole[:end]), 0, len(log[1]))


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, b"\2"), (1, b"\0"), (1, b"\x63"), (2, b"\1\0"), (2, b"\0\2"), (2, b"\0\1"),
     (4, (BODY_BYTES_MAX + 1).to_bytes(4, "big")), (4, b"\xff" * 4), (4, bytes(4)), (96, b"?")],
)  # fmt: skip
def test_a_whole_header_that_says_something_else_is_taken_alike(at: int, value: bytes) -> None:
    entry = chain(
        GENESIS, group_id=GROUP, epoch=0, view=1, kind=Kind.REQUEST, ts_ms=5,
        body=Body(argv=(b"SET", b"k", b"v")),
    )  # fmt: skip
    packed = bytearray(entry.header.encoded[:-16])
    packed[at : at + len(value)] = value
    same("decode_entries", bytes(packed) + hash_of(bytes(packed)) + entry.body, 0, 1)


@pytest.mark.parametrize(
    "arguments",
    [(b"", 0, 0), (b"", 1, 0), (b"", 0, 1), (b"x", -1, 1), (bytearray(200), 0, 1), (None, 0, 1),
     (b"", 0, 2**70), (b"", 2**70, 1), (b"", 0, None), (b"", True, 0)],
)  # fmt: skip
def test_what_is_no_place_of_entries_is_refused_alike(arguments: tuple[Any, ...]) -> None:
    python, compiled = twin("decode_entries").python, twin("decode_entries").compiled
    assert outcome(python, *arguments) == outcome(compiled, *arguments)


@settings(max_examples=budget(150))
@given(logs(), st.sampled_from([GROUP, OTHER, bytearray(GROUP), None]), st.booleans())
def test_a_chain_is_checked_alike(
    log: tuple[Link, list[Entry]], group_id: Any, is_tuple: bool
) -> None:
    begin, entries = log
    given_entries: Any = tuple(entries) if is_tuple else entries
    answer = same("check_chain", begin, group_id, given_entries)
    assert isinstance(answer, tuple)
    if isinstance(answer, Link):
        assert answer == (entries[-1].header.link if entries else begin)
    same("check_chain", begin, GROUP, [*entries, None])


@settings(max_examples=budget(150))
@given(logs(), st.integers(0, 9), st.sampled_from([0, 1, 4096, 2**63 - 1, 2**63, 2**64 - 1, -1]))
def test_a_log_is_encoded_alike(log: tuple[Link, list[Entry]], segment: int, offset: int) -> None:
    answer = same("encode_log", log[1], segment, offset)
    assert same("encode_log", tuple(log[1]), segment, offset) == answer
    same("encode_log", [*log[1], None], segment, offset)
    same("encode_log", log[1], 2**64 - segment, offset)


@given(st.integers(0, 600), st.integers(0, 255))
def test_hashes_are_those_of_the_library(size: int, byte: int) -> None:
    value = bytes([byte]) * size
    entry = chain(
        GENESIS, group_id=GROUP, epoch=0, view=1, kind=Kind.REQUEST, ts_ms=5, body=Body(value)
    )
    decode, encode = twin("decode_entries").compiled, twin("encode_log").compiled
    assert decode is not None
    assert encode is not None
    assert decode(encode_entry(entry), 0, 1)[0] == (entry,)
    slot = encode([entry], 1, 2)[1]
    assert slot[-16:] == hashlib.blake2b(slot[:-16], digest_size=16).digest()


def same_named(name: str, *arguments: Any, **named: Any) -> object:
    """The same for arguments that have names."""
    python, compiled = twin(name).python, twin(name).compiled
    assert compiled is not None
    answer = outcome(partial(python, **named), *arguments)
    assert outcome(partial(compiled, **named), *arguments) == answer
    return answer


WORDS = st.lists(st.binary(max_size=9), max_size=4).map(tuple)
BODIES = st.builds(Body, st.binary(max_size=9), WORDS, WORDS)
NUMBERS = st.sampled_from([0, 1, 7, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1])


@settings(max_examples=budget(200))
@given(
    st.builds(Link, st.integers(0, 2**62), st.binary(min_size=16, max_size=16), NUMBERS),
    BODIES, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(Kind), st.booleans(),
)  # fmt: skip
def test_an_entry_is_made_alike(
    link: Link, body: Body, epoch: int, view: int, ts_ms: int, session: int, kind: Kind,
    claim: bool,
) -> None:  # fmt: skip
    entry = same_named(
        "chain", link, group_id=GROUP, epoch=epoch, view=view, kind=kind, ts_ms=ts_ms, body=body,
        instance=OTHER, session=session, csn=session, claim=claim,
    )  # fmt: skip
    if isinstance(entry, Entry):
        assert type(entry.header.kind) is Kind
        assert type(entry.header.claim) is bool
        assert same("decode_entries", encode_entry(entry), 0, 1) == (
            (entry,),
            len(entry.body) + 128,
        )


@pytest.mark.parametrize(
    "strange",
    [{"group_id": b"short"}, {"group_id": bytearray(GROUP)}, {"instance": b""}, {"instance": None},
     {"body": None}, {"body": (b"", (), ())}, {"body": Body(b"x" * 65536)},
     {"body": Body(groups=(b"x" * 65536,))}, {"body": Body(argv=("text",))},  # type: ignore[arg-type]
     {"body": Body(argv=(b"x",) * 65535)}, {"body": Body(groups=(b"",) * 65536)},
     {"body": Body(argv=(b"x" * BODY_BYTES_MAX,))}, {"body": Body(argv=[b"x"])},  # type: ignore[arg-type]
     {"kind": 1}, {"kind": 99}, {"kind": True}, {"claim": 1}, {"claim": None}, {"epoch": True},
     {"epoch": None}, {"ts_ms": 1.5}, {"session": "1"}, {"csn": -1}, {"what": 1}],
)  # fmt: skip
def test_a_strange_entry_is_made_or_refused_alike(strange: dict[str, Any]) -> None:
    plain: dict[str, Any] = {
        "group_id": GROUP, "epoch": 0, "view": 1, "kind": Kind.REQUEST, "ts_ms": 5,
        "body": Body(argv=(b"SET", b"k")), "instance": OTHER, "session": 1, "csn": 2,
        "claim": False,
    }  # fmt: skip
    python, compiled = twin("chain").python, twin("chain").compiled
    assert compiled is not None
    made = [
        outcome(partial(chosen, **{**plain, **strange}), GENESIS) for chosen in (python, compiled)
    ]
    if "what" in strange:  # they are called differently
        assert all(found[0] is TypeError for found in made)  # type: ignore[index]
    else:
        assert made[0] == made[1] or _is_same_failure(*made)
    same_named("chain", (0, bytes(16), 0), **plain)
    same_named("chain", Link(0, b"short", 0), **plain)


def _is_same_failure(one: Any, other: Any) -> bool:
    return isinstance(one, tuple) and isinstance(one[0], type) and one[0] is other[0]


def test_what_is_not_said_of_an_entry_is_the_same() -> None:
    same_named("chain", GENESIS, group_id=GROUP, epoch=0, view=1, kind=Kind.NOOP, ts_ms=5)


@settings(max_examples=budget(200))
@given(BODIES, st.data())
def test_bodies_are_read_alike(body: Body, data: st.DataObject) -> None:
    whole = encode_body(body)
    assert same("decode_body", whole) == body
    assert same("decode_body", whole) == body  # the one that was asked for last
    assert type(same("decode_body", whole)) is Body
    spoiled = bytearray(whole)
    spoiled[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    same("decode_body", bytes(spoiled))
    same("decode_body", whole[: data.draw(st.integers(0, len(whole)))])
    same("decode_body", whole + b"?")


@pytest.mark.parametrize("strange", [None, "text", bytearray(6), 7, memoryview(bytes(6))])
def test_what_is_no_body_is_refused_alike(strange: Any) -> None:
    found = [outcome(chosen, strange) for chosen in twin("decode_body")[2:4]]
    assert found[0] == found[1]
