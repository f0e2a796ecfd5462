"""`coordination.core.pool.messages`: frames of the pool."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.pool.effects import Heard, KeepNode, NodeStart
from millstream.coordination.core.pool.messages import (
    Address,
    Board,
    Carried,
    Carry,
    Deleted,
    Found,
    Founded,
    Founding,
    Hello,
    Join,
    JoinRefused,
    NodeInfo,
    Ping,
    PoolEnvelope,
    PoolPayload,
    Sighting,
    Tables,
    decode_pool,
    encode_pool,
    is_pool_frame,
)
from millstream.coordination.core.pool.pool import Pool
from millstream.errors import RemoteProtocolError
from millstream.vsr.core.effects import DiskDone, Timer
from millstream.vsr.core.messages import LENGTH
from millstream.vsr.core.messages import decode as decode_group

ids = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, (1 << 63) - 1)
small = st.integers(0, 0xFFFFFFFF)
flags = st.booleans()
addresses = st.builds(Address, st.text(max_size=20), st.integers(0, 65535))
infos = st.builds(NodeInfo, ids, numbers, small, addresses, addresses, flags)
members = st.lists(ids, max_size=7).map(tuple)
foundings = st.builds(
    Founding, st.integers(1, 1 << 62), members | st.just((b"m" * 16,) * 2), flags, numbers
)
sightings = st.builds(Sighting, ids, small, small, members, numbers, numbers)
texts = st.binary(max_size=20)


def some(one: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(one, max_size=4).map(tuple)


payloads: st.SearchStrategy[PoolPayload] = st.one_of(
    st.builds(Hello, infos, ids),
    st.builds(Join, infos, some(foundings)),
    st.builds(JoinRefused, st.text(max_size=100)),
    st.builds(Ping, some(ids), infos, ids, some(sightings), flags, numbers),
    st.builds(Tables, some(ids), some(infos), some(foundings), some(ids), flags),
    st.builds(Found, foundings),
    st.builds(Founded, ids, st.text(max_size=100)),
    st.builds(Deleted, ids, flags),
    st.builds(Board, ids, numbers, some(st.tuples(texts, numbers)), some(st.tuples(texts, texts))),
    st.builds(Carry, numbers, numbers, some(texts)),
    st.builds(Carried, numbers, st.none() | texts),
)
envelopes = st.builds(PoolEnvelope, ids, numbers, payloads)


def frame_of(envelope: PoolEnvelope) -> bytes:
    data = encode_pool(envelope)
    (length,) = LENGTH.unpack_from(data)
    assert length == len(data) - LENGTH.size
    return data[LENGTH.size :]


@given(envelopes)
def test_what_is_written_is_read(envelope: PoolEnvelope) -> None:
    frame = frame_of(envelope)
    assert is_pool_frame(frame)
    assert decode_pool(frame) == envelope


@given(envelopes, st.data())
def test_what_was_changed_on_the_way_is_refused(
    envelope: PoolEnvelope, data: st.DataObject
) -> None:
    frame = bytearray(frame_of(envelope))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RemoteProtocolError):
        decode_pool(bytes(frame))
    with pytest.raises(RemoteProtocolError):
        decode_pool(bytes(frame[:at]))


@pytest.mark.parametrize(
    "payload",
    [
        Founded(b"short", ""),
        Deleted(bytes(17), False),
        Found(Founding(0, (), True, 0)),
        Found(Founding(1, tuple(bytes([n]) * 16 for n in range(8)), True, 0)),
        Founded(bytes(16), "x" * 1025),
    ],
)
def test_what_is_out_of_bounds_is_refused(payload: PoolPayload) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_pool(frame_of(PoolEnvelope(bytes(16), 1, payload)))


def test_a_frame_of_the_pool_is_none_of_a_group() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_group(frame_of(PoolEnvelope(bytes(16), 1, Deleted(bytes(16), False))))


def test_a_groups_id_is_the_hash_of_its_record() -> None:
    record = Founding(1, (b"a" * 16,), True, 7)
    assert record.group_id == record._replace().group_id
    others = [
        record._replace(number=2), record._replace(salt=8), record._replace(has_journal=False),
        record._replace(members=(b"b" * 16,)),
    ]  # fmt: skip
    assert len({record.group_id, *(other.group_id for other in others)}) == 5


def test_addresses_are_written_as_people_do() -> None:
    assert Address("10.0.0.1", 7380).text == "10.0.0.1:7380"
    assert Address("::1", 7380).text == "[::1]:7380"


@given(st.lists(envelopes, max_size=8))
def test_whatever_a_node_says_another_one_goes_on(said: list[PoolEnvelope]) -> None:
    pool, here = Pool(lambda: 0.5), Address("h", 1)
    effects = pool.step(0, NodeStart(None, b"m" * 16, 1, (), here, here, (Address("o", 1),)))
    for now_ms, event in enumerate([*map(Heard, said), Timer()], start=1):
        while keep := next((one for one in effects if isinstance(one, KeepNode)), None):
            effects = pool.step(now_ms, DiskDone(keep.op))
        effects = pool.step(now_ms, event)
    for founding in pool.tables.foundings.values():
        assert list(founding.members) == sorted(set(founding.members))


def test_text_that_is_none_is_refused() -> None:
    frame = frame_of(PoolEnvelope(bytes(16), 1, JoinRefused("reason")))
    body = frame[:-8].replace(b"reason", b"rea\xffon")
    with pytest.raises(RemoteProtocolError) as raised:
        decode_pool(body + blake2b(body, digest_size=8).digest())
    assert raised.value.code == "bad_frame"
