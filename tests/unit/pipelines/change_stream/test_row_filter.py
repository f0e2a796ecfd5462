from __future__ import annotations

import pytest

from millstream.client.columns import Columns, cut_columns
from millstream.pipelines.change_stream.row_filter import rows_wanted
from millstream.wire.frames import deletion, mutation

KEYS = ["a", "ab", "b", "\\xab", "\\x5c78"]


def columns(*, has_deletions: bool = True) -> Columns:
    frames = [
        mutation(0, key, b"", n, 1, 1, 0, 0, 0)
        for n, key in enumerate((b"a", b"ab", b"b", b"\xab", b"\\x"), 1)
    ]
    found = Columns()
    cut_columns(
        b"".join(frames) + (deletion(0, b"ab", 6, 1, 6, 0) if has_deletions else b""), found
    )
    return found


@pytest.mark.parametrize(
    ("prefix", "is_live_only", "wanted"),
    [
        ("", True, KEYS),
        ("a", False, ["a", "ab", "ab"]),
        ("ab", True, ["ab"]),
        ("\\x", True, ["\\xab", "\\x5c78"]),
        ("z", True, []),
    ],
)
def test_rows_are_chosen_by_prefix_and_kind(
    prefix: str, is_live_only: bool, wanted: list[str]
) -> None:
    rows = columns()
    mask = rows_wanted(rows, prefix, is_live_only=is_live_only)
    assert mask is not None
    kept = zip(rows.key, mask.to_pylist(), strict=True)
    assert [key for key, is_kept in kept if is_kept] == wanted


def test_no_mask_is_made_where_all_rows_are_wanted() -> None:
    assert rows_wanted(columns(), "", is_live_only=False) is None
    assert rows_wanted(columns(has_deletions=False), "", is_live_only=True) is None
