"""Long lists in requests."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.documents.asked import (
    TOGETHER_BYTES_MAX,
    TOGETHER_MAX,
    PackedIds,
    documents_asked,
    revs_asked,
)
from millstream.errors import UsageError

REV = "1-" + "a" * 32


def test_revisions_come_in_portions_of_documents():
    asked = {f"d{n}": [REV, f"2-{n:032x}"] for n in range(2000)} | {"wide": [REV] * 5000}
    found = revs_asked(json.dumps(asked).encode(), 3000, 5000)
    together = {}
    for text in found:
        assert len(text) < TOGETHER_BYTES_MAX + 10 or list(json.loads(text)) == ["wide"]
        together |= json.loads(text)
    assert together == asked
    assert not revs_asked(b"{}", 1, 1)


@pytest.mark.parametrize("revs", [0, 1, 6])
def test_a_portion_is_as_many_documents_as_are_read_together(revs):
    asked = {f"{n}": [REV] * revs for n in range(TOGETHER_MAX * 5)}
    found = revs_asked(json.dumps(asked).encode(), 3000, 5000)
    assert [len(json.loads(text)) for text in found] == [TOGETHER_MAX] * 5


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"[]", "bad_request"), (b'{"a":1}', "bad_request"), (b'{"a":[1]}', "bad_request"),
        (b'{"a":["x"]}', "bad_request"), (b"{", "bad_json"),
        (b'{"a":[],"b":[],"c":[]}', "too_large"),
        (json.dumps({"a": [REV] * 3}).encode(), "too_large"),
    ],
)  # fmt: skip
def test_what_asks_for_no_revisions_is_refused(text, code):
    with pytest.raises(UsageError) as caught:
        revs_asked(text, 2, 2)
    assert caught.value.code == code


def test_documents_come_in_portions():
    docs = [{"id": f"d{n}", "rev": REV, "more": [1]} for n in range(2000)]
    odd = [7, {"id": 7}, {"id": "r", "rev": 7}, {"id": "s", "atts_since": [REV] * 9, "rev": None}]
    content = {"docs": docs + odd, "revs": True, "latest": "x", "other": False}
    found = documents_asked(json.dumps(content).encode(), 3000, 3)
    assert (found.flags, found.length) == ({"revs": True}, 2004)
    assert all(len(text) < TOGETHER_BYTES_MAX + 10 for text in found.portions)
    entries = [one for text in found.portions for one in json.loads(text)]
    assert entries[:2000] == [{"id": one["id"], "rev": REV} for one in docs]
    assert entries[2000:] == [
        None, None, {"id": "r", "rev": "7"}, {"id": "s", "atts_since": [REV] * 4},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code"),
    [(b"[]", "bad_request"), (b"{}", "bad_request"), (b'{"docs":[1,2,3]}', "too_large")],
)
def test_what_asks_for_no_documents_is_refused(text, code):
    with pytest.raises(UsageError) as caught:
        documents_asked(text, 2, 2)
    assert caught.value.code == code


@given(st.lists(st.text(st.characters(), max_size=3)), st.text(max_size=3))
def test_packed_ids_are_a_set(ids, other):
    packed = pickle.loads(pickle.dumps(PackedIds(ids)))
    assert set(packed) == set(ids)
    assert len(packed) == len(set(ids))
    assert all(one in packed for one in ids)
    assert (other in packed) == (other in ids)
    assert 7 not in packed
