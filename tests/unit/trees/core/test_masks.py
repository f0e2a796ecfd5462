from hypothesis import given
from hypothesis import strategies as st

from millstream.trees.core.masks import Mask
from millstream.trees.core.shapes import Leaf

wanted_sets = st.integers(0, 2**1024 - 1) | st.integers(0, 2**64 - 1)


@given(st.lists(st.integers(0, 255)), wanted_sets)
def test_rows_of_wanted_partitions_stay(partitions: list[int], wanted: int) -> None:
    keys = [b"%d" % number for number in range(len(partitions))]
    expected = [at for at, one in enumerate(partitions) if wanted >> one & 1]
    for form in (bytes(partitions), partitions, tuple(partitions)):
        leaf = Mask(wanted).take(Leaf(keys, keys, form))
        assert leaf.keys == leaf.values == [keys[at] for at in expected]
        assert list(leaf.partitions) == [partitions[at] for at in expected]
    flags = Mask(wanted).flags(bytes(partitions))
    assert flags.count(1) == len(expected)


def test_partitions_beyond_the_mask_are_not_wanted() -> None:
    assert Mask(0b10).flags([0, 1, 700, 65535]) == b"\x00\x01\x00\x00"
