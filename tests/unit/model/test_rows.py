"""What a majority of the places of a row has."""

from millstream.model.rows import Row, has_all, majority, reached, spare


def test_a_write_needs_a_majority_of_every_row() -> None:
    rows: list[Row] = [("a", "b", "c"), ("c", "d", None)]
    ends = {"a": 9, "b": 7, "c": 8, "d": 5}
    assert (majority(rows[0]), spare(rows[0])) == (2, 1)
    assert reached(rows[:1], ends) == 8
    assert reached(rows, ends) == 5
    assert reached([("a", None)], ends) == 0


def test_a_row_that_names_fewer_copies_than_a_majority_has_all_if_these_have() -> None:
    assert has_all(("a", None, None), {"a": 5}, 5)
    assert not has_all(("a", "b", None), {"a": 5}, 5)
    assert not has_all((None, None), {}, 0)
