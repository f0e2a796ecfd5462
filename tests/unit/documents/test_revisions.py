"""Revisions as text and as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.documents.revisions import (
    GENERATION_MAX,
    SIGNATURE_TEXT_BYTES_MAX,
    Path,
    checked_rev,
    is_foreign,
    is_signature,
    parse_rev,
    sort_key,
    to_bytes,
)
from millstream.errors import UsageError

DIGITS = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("rev", "parts"),
    [
        ("1-a", (1, "a")),
        (f"12-{DIGITS}", (12, DIGITS)),
        ("3-a-b-c", (3, "a-b-c")),
        (f"{GENERATION_MAX}-ü", (GENERATION_MAX, "ü")),
        ("1-" + "x" * SIGNATURE_TEXT_BYTES_MAX, (1, "x" * SIGNATURE_TEXT_BYTES_MAX)),
    ],
)
def test_they_are_divided_at_the_first_dash(rev, parts):
    assert parse_rev(rev) == parts
    assert checked_rev(rev) == rev


@pytest.mark.parametrize(
    "wrong",
    [
        None, 1, b"1-a", "", "1", "1-", "-a", "0-a", "01-a", "+1-a", " 1-a", "1_0-a", "²-a", "١-a",
        "1-a,b", "1-a\n", "1-\x7f", "1-\ud800", f"{GENERATION_MAX + 1}-a", "9" * 5000 + "-a",
        "1-" + "x" * (SIGNATURE_TEXT_BYTES_MAX + 1), "1-" + "ü" * SIGNATURE_TEXT_BYTES_MAX,
    ],
)  # fmt: skip
def test_what_has_not_their_form_is_refused(wrong):
    with pytest.raises(UsageError, match="Invalid rev format") as caught:
        parse_rev(wrong)
    assert caught.value.code == "bad_request"


@given(st.text(max_size=40) | st.text("0123456789abcdefABCDEF ", min_size=32, max_size=32))
def test_only_lower_case_digits_are_told_from_bytes(signature):
    if not is_signature(signature):
        return
    packed = to_bytes(signature)
    assert len(packed) == 16
    is_ours = len(signature) == 32 and all(one in "0123456789abcdef" for one in signature)
    assert is_foreign(signature, packed) != is_ours


def test_generations_are_numbers_and_signatures_bytes():
    revs = ["10-a", "9-b", "9-\uffff", "9-\U00010000", "9-B"]
    assert sorted(revs, key=sort_key) == ["9-B", "9-b", "9-\uffff", "9-\U00010000", "10-a"]


def test_a_path_is_newest_first():
    path = Path(5, ["c", "b", "a"])
    assert path.rev == "5-c"
    assert path.revs() == ["5-c", "4-b", "3-a"]
