from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.pipelines.change_stream.offsets import (
    Offset,
    OffsetEntry,
    offset_from_json,
    offset_to_json,
)

SEQNOS = st.lists(st.integers(0, 2**48 - 1), min_size=3, max_size=3).map(sorted)
ENTRIES = st.builds(
    lambda uuid, seqnos, branch, lease_id, load, purge_seqno, rollback_to: OffsetEntry(
        uuid, seqnos[1], seqnos[0], seqnos[2], branch, lease_id, load, purge_seqno, rollback_to
    ),
    st.integers(0, 2**48 - 1),
    SEQNOS,
    st.integers(0, 2**53 - 1),
    st.none() | st.integers(1, 2**53 - 1),
    st.integers(1, 2**31),
    st.none() | st.integers(0, 2**48),
    st.none() | st.integers(0, 2**48),
)
OFFSETS = st.builds(
    Offset, st.text(), st.text(), st.dictionaries(st.integers(0, 1023), ENTRIES, max_size=5)
)
ENTRY = ["00000000abcd", 5, 3, 9, 7, None, 1, None]


def form(**changed: object) -> dict[str, object]:
    return {"v": 1, "bucket": "b", "bucket_uuid": "1f", "p": {"0": ENTRY}} | changed


@given(OFFSETS)
def test_an_offset_comes_back_from_its_text(offset: Offset) -> None:
    assert offset_from_json(json.loads(json.dumps(offset_to_json(offset)))) == offset


@given(OFFSETS)
def test_equal_offsets_have_equal_text(offset: Offset) -> None:
    shuffled = offset._replace(entries=dict(reversed(list(offset.entries.items()))))
    assert json.dumps(offset_to_json(shuffled)) == json.dumps(offset_to_json(offset))
    again = offset_from_json(json.loads(json.dumps(offset_to_json(offset))))
    assert json.dumps(offset_to_json(again)) == json.dumps(offset_to_json(offset))


def test_the_form_is_the_documented_one() -> None:
    entry = OffsetEntry(0xABCD, 5, 3, 9, 7, 11, 2, 4, 3)
    offset = Offset("b", "1f", {10: OffsetEntry(), 2: entry})
    assert json.dumps(offset_to_json(offset)) == (
        '{"bucket": "b", "bucket_uuid": "1f", "p": {'
        '"2": ["00000000abcd", 5, 3, 9, 7, 11, 2, 4, 3], '
        '"10": ["000000000000", 0, 0, 0, 0, null, 1, null]}, "v": 1}'
    )


def test_a_partition_that_is_not_there_was_never_read() -> None:
    offset = offset_from_json(form())
    assert offset.entry(0).seqno == 5
    assert offset.entry(1) == OffsetEntry()
    assert offset.entry(1).is_closed
    assert not offset.entry(0).is_closed


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("text", "expected a JSON object"),
        (form(v=2), "version 2 is not known"),
        ({"p": {}}, "version None is not known"),
        (form(bucket=3), "must be text"),
        (form(p=[]), "p must map partitions"),
        (form(p={"x": ENTRY}), "'x' is no partition"),
        (form(p={"0": ENTRY[:7]}), "partition 0: expected 8 or 9 members"),
        (form(p={"0": {}}), "partition 0: expected 8 or 9 members"),
        (form(p={"0": [*ENTRY[:1], 10, *ENTRY[2:]]}), "seqno 10 is outside its snapshot"),
        (form(p={"0": [*ENTRY[:1], -1, *ENTRY[2:]]}), "expected whole numbers"),
        (form(p={"0": [*ENTRY[:1], True, *ENTRY[2:]]}), "expected whole numbers"),
        (form(p={"0": [*ENTRY[:1], 5.0, *ENTRY[2:]]}), "expected whole numbers"),
        (form(p={"0": ["xyz", *ENTRY[1:]]}), "partition 0: invalid literal"),
        (form(p={"0": [7, *ENTRY[1:]]}), "partition 0: "),
    ],
)
def test_anything_else_is_refused(bad: object, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        offset_from_json(bad)
    assert caught.value.code == "bad_offset"
