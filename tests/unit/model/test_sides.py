import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.lineage import born
from millstream.model.sides import has_sidecar, lineage_of, side_of, sidecar_of, split

LINEAGES = st.builds(born, st.integers(1, 1 << 53), st.integers(1, 1 << 50))


@given(LINEAGES, st.binary(max_size=300))
def test_two_become_one_and_two_again(lineage, sidecar):
    side = side_of(lineage, sidecar)
    assert split(side) == (lineage, sidecar)
    assert (lineage_of(side), sidecar_of(side)) == (lineage, sidecar)
    assert has_sidecar(side) == bool(sidecar)
    if not sidecar:
        assert side is lineage


@pytest.mark.parametrize("length", [0, 1, 127, 128, 300, 20_000])
def test_lineages_of_any_length_have_room(length):
    lineage = b"\x01" * length
    assert split(side_of(lineage, b"s")) == (lineage, b"s")
    assert split(side_of(lineage, b"")) == (lineage, b"")


@pytest.mark.parametrize(
    "wrong", [b"\0", b"\0\x80", b"\0\x02ab", b"\0\x03ab", b"\0\xff\xff\x01ab"]
)
def test_what_ends_too_early_is_none(wrong):
    for function in (split, lineage_of, sidecar_of):
        with pytest.raises(ValueError, match="ends before"):
            function(wrong)
