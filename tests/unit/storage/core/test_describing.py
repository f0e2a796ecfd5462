"""Described frames out of the log: what `described` makes of the changes that are read back."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from millstream.storage.core.describing import cut_described
from millstream.storage.core.records import (
    ChangeColumns,
    StoredChange,
    cut_changes,
    encode_changes,
)
from millstream.wire.frames import deletion, described, mutation

pieces = st.binary(max_size=300)
frames = st.one_of(
    st.builds(
        mutation, st.just(3), pieces, pieces, st.integers(1, 2**48), *map(st.just, (1,) * 5)
    ),
    st.builds(deletion, st.just(3), pieces, st.integers(1, 2**48), *map(st.just, (1,) * 3)),
)
stored = st.builds(StoredChange, frames, st.just(0), pieces, pieces)


@given(st.lists(stored, min_size=1, max_size=5), st.integers(0, 99), st.data())
def test_one_read_is_cut_up_to_the_first_damaged_record(changes, start, data):
    parts = []
    lengths = encode_changes(ChangeColumns.of(3, changes), parts)
    content = bytearray(b"".join(parts))
    stops = [start + stop for stop in accumulate(lengths)]
    offsets = [start, *stops[:-1]]

    def wanted(data, *where):
        return [described(*one[:1], *one[2:]) for one in cut_changes(data, start, *where)]

    assert len(wanted(bytes(content), offsets, stops)) == len(changes)
    assert cut_described(bytes(content), start, offsets, stops) == wanted(
        bytes(content), offsets, stops
    )
    picked = sorted(data.draw(st.sets(st.integers(0, len(changes) - 1), min_size=1)))
    some = [[column[n] for n in picked] for column in (offsets, stops)]
    assert cut_described(bytes(content), start, *some) == wanted(bytes(content), *some)
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(content), bytes(content[:at])):
        assert cut_described(damaged, start, offsets, stops) == wanted(damaged, offsets, stops)
