from millstream.trees.core.shapes import NO_REDUCER, Leaf


def test_without_a_reducer_every_partial_is_empty() -> None:
    leaf = Leaf([b"a"], [b"1"], b"\x00")
    assert NO_REDUCER.reduce([leaf, leaf]) == [b"", b""]
    assert NO_REDUCER.rereduce([[b"", b""]]) == [b""]
