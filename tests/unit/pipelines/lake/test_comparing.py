from __future__ import annotations

from millstream.pipelines.lake.comparing import EXPIRY_MARGIN_S, SAMPLES_MAX, Compared, Comparison

NOW = 1000


def compared(
    backup: list[tuple[str, str, int, int]],
    bucket: list[tuple[str, str, int, int]],
    newer: list[tuple[str, str, int, int]] | None = None,
) -> Compared:
    comparison = Comparison(NOW, is_same_bucket=newer is not None)
    comparison.expect(backup)
    comparison.find(bucket, are_newer=False)
    comparison.find(newer or [], are_newer=True)
    return comparison.result()


def test_kinds_of_differences_are_distinguished() -> None:
    backup = [("put", "same", 1, 0), ("put", "gone", 2, 0), ("put", "other", 3, 0),
              ("delete", "dead", 4, 0), ("put", "undead", 5, 0)]  # fmt: skip
    bucket = [("put", "same", 1, 0), ("put", "other", 9, 0), ("put", "more", 7, 0),
              ("delete", "undead", 5, 0)]  # fmt: skip
    found = compared(backup, bucket)
    assert found[:5] == (1, 0, 2, 1, 1)
    assert set(found.samples) == {"gone", "undead", "other", "more"}
    assert not found.is_equal


def test_later_changes_are_not_compared() -> None:
    backup = [("put", "a", 1, 0), ("put", "b", 2, 0)]
    found = compared(backup, [("put", "a", 1, 0)], [("delete", "b", 9, 0), ("put", "c", 9, 0)])
    assert (found.equal, found.changed, found.is_equal) == (1, 2, True)


def test_expired_documents_are_not_compared() -> None:
    over = NOW + EXPIRY_MARGIN_S
    assert compared([("put", "a", 1, over)], [("put", "b", 2, 1)]) == Compared()
    assert compared([("put", "a", 1, over + 1)], []).missing == 1


def test_design_documents_have_another_cas_in_another_bucket() -> None:
    assert compared([("put", "_design/d", 1, 0)], [("put", "_design/d", 2, 0)]) == Compared()
    assert compared([("put", "_design/d", 1, 0)], [("put", "_design/d", 2, 0)], []).different == 1


def test_results_add_up_with_a_bound_on_samples() -> None:
    one = Compared(1, 2, 3, 4, 5, 6, ("a", "b", "c"))
    both = one.plus(one)
    assert both[:6] == (2, 4, 6, 8, 10, 12)
    assert both.samples == ("a", "b", "c", "a", "b")
    many = compared([("put", str(n), 1, 0) for n in range(50)], [])
    assert (many.missing, len(many.samples)) == (50, SAMPLES_MAX)
