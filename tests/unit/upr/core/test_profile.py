"""Frames of each profile are those of the slow, obvious rewriting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.upr.core.profile import DescribedProfile, Profile
from millstream.upr.core.shared_slices import SharedSlice
from millstream.wire.frames import (
    deletion,
    described,
    description_bytes,
    expiration,
    is_put,
    iter_frames,
    mutation,
    with_profile,
)
from millstream.wire.mcbp import OpenFlag

PARTITION = 7
PUT = mutation(PARTITION, b"k", b"v", 1, 1, 1, 0, 0, 0)
KEY = st.binary(min_size=1, max_size=20)
NUMBER = st.integers(1, 2**60)
frames = st.lists(
    st.one_of(
        st.builds(
            mutation, st.just(PARTITION), KEY, st.binary(max_size=40), NUMBER, NUMBER, NUMBER,
            st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 1),
        ),
        st.builds(
            deletion, st.just(PARTITION), KEY, NUMBER, NUMBER, NUMBER, st.integers(0, 2**32 - 1)
        ),
        st.builds(
            expiration, st.just(PARTITION), KEY, NUMBER, NUMBER, NUMBER, st.integers(0, 2**32 - 1)
        ),
    ),
    max_size=12,
)  # fmt: skip


@given(
    frames,
    st.sampled_from([PARTITION, 0, 0x1000, 0xFFFFFFFF]),
    st.sampled_from([0, 0x20, 0x08, 0x40, 0x28, 0x60]),
    st.booleans(),
    st.booleans(),
)
def test_chunks_are_the_rewritten_frames(
    canonical: list[bytes], opaque: int, flags: int, has_json: bool, has_expiry: bool
) -> None:
    profile = Profile(flags, has_json=has_json, has_expiry_opcode=has_expiry)
    expected = with_profile(
        canonical,
        opaque=opaque,
        keep_json=has_json,
        delete_times=bool(flags & 0x20),
        expiry_opcode=has_expiry and bool(flags & 0x20),
        with_values=not flags & 0x48,
        keep_datatype=bool(flags & 0x40),
    )
    before = list(canonical)
    assert profile.join(canonical, PARTITION, opaque) == b"".join(expected)
    between = profile.join(canonical, PARTITION, opaque, b"a marker", b"an end")
    assert between == b"".join([b"a marker", *expected, b"an end"])
    assert canonical == before
    sizes = list(map(len, canonical))
    offsets = [sum(sizes[:number]) for number in range(len(sizes))]
    is_mutations = all(map(is_put, canonical))
    json = [at for at, frame in zip(offsets, canonical, strict=True) if frame[5] & 1]
    shared = SharedSlice(b"".join(canonical), offsets, json, 0, 0, 0, is_mutations)
    if profile.shares(shared):
        assert profile.join_shared(shared, PARTITION, opaque, b"", b"") == b"".join(expected)
        again = profile.join_shared(shared, PARTITION, opaque, b"a marker", b"an end")
        assert again == between
    else:
        assert flags & 0x48 or not is_mutations
    items = [described(frame, b"%d" % n) for n, frame in enumerate(canonical)]
    profile = DescribedProfile(flags, has_json=has_json, has_expiry_opcode=has_expiry)
    marker, *pieces, end = iter_frames(profile.join(items, PARTITION, opaque, PUT, PUT))
    assert marker == end == PUT
    assert pieces[1::2] == expected
    patch = opaque.to_bytes(4, "big")
    metas = [item[: description_bytes(item)] for item in items]
    assert pieces[::2] == [meta[:12] + patch + meta[16:] for meta in metas]


@pytest.mark.parametrize("opaque", [PARTITION, 9])
def test_a_shared_frame_is_never_written_to(opaque: int) -> None:
    frame = mutation(PARTITION, b"k", b"v", 1, 1, 1, 0, 0, 0)
    copy = bytes(bytearray(frame))
    flags = OpenFlag.INCLUDE_DELETE_TIMES
    profile = Profile(flags, has_json=True, has_expiry_opcode=True)
    profile.join([frame, frame], PARTITION, opaque)
    assert frame == copy
