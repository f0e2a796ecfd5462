import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.gateway.core.listing import Listed, list_documents
from millstream.views.core.query.parameters import parse_query

NAMES = ["A", "a", "b", "c", "é"]
DOCUMENTS = [Listed(f"_design/{name}", f"1-{number}", b"{}") for number, name in enumerate(NAMES)]


def listed(**options):
    return json.loads(b"".join(list_documents(DOCUMENTS, parse_query(options))))


def names(**options):
    return "".join(row["id"].removeprefix("_design/") for row in listed(**options)["rows"])


def test_all_in_the_order_of_their_bytes():
    answer = listed()
    assert (answer["total_rows"], answer["offset"]) == (5, 0)
    assert answer["rows"][0] == {
        "id": "_design/A", "key": "_design/A", "value": {"rev": "1-0"},
    }  # fmt: skip
    assert names() == "Aabcé"


@pytest.mark.parametrize(
    ("options", "found", "offset"),
    [
        ({"startkey": "_design/b"}, "bcé", 2),
        ({"endkey": "_design/b"}, "Aab", 0),
        ({"startkey": "_design/a", "endkey": "_design/c", "inclusive_end": False}, "ab", 1),
        ({"key": "_design/c"}, "c", 3),
        ({"key": "_design/x"}, "", 4),
        ({"descending": True}, "écbaA", 0),
        ({"descending": True, "startkey": "_design/b"}, "baA", 2),
        ({"descending": True, "endkey": "_design/b"}, "écb", 0),
        ({"descending": True, "endkey": "_design/b", "inclusive_end": False}, "éc", 0),
        ({"skip": 1, "limit": 2}, "ab", 1),
        ({"skip": 9}, "", 5),
        ({"limit": 0}, "", 0),
        ({"descending": True, "skip": 1, "limit": 1}, "c", 1),
    ],
)
def test_ranges(options, found, offset):
    assert names(**options) == found
    assert listed(**options)["offset"] == offset


def test_keys_are_answered_in_their_order():
    keys = ["_design/c", "_design/none", "_design/a", "_design/c"]
    rows = listed(keys=keys)["rows"]
    assert [row["key"] for row in rows] == keys
    assert rows[1] == {"key": "_design/none", "error": "not_found"}
    assert rows[0] == rows[3]
    rows = listed(keys=keys, skip=1, limit=2, descending=True)["rows"]
    assert [row["key"] for row in rows] == keys[2:0:-1]


def test_documents_come_along():
    row = listed(include_docs=True, limit=1)["rows"][0]
    assert row["doc"] == {"_id": "_design/A", "_rev": "1-0"}


@pytest.mark.parametrize("options", [{"key": 1}, {"startkey": None}, {"keys": ["a", []]}])
def test_keys_are_strings(options):
    with pytest.raises(UsageError) as caught:
        listed(**options)
    assert caught.value.code == "query_parse_error"


BOUND = st.sampled_from(["", "_design/", "_design/a", "_design/aa", "_design/c", "_design/é", "x"])


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "startkey": BOUND,
            "endkey": BOUND,
            "descending": st.booleans(),
            "inclusive_end": st.booleans(),
            "skip": st.integers(0, 6),
            "limit": st.integers(0, 6),
        },
    )
)
def test_ranges_are_those_of_a_plain_search(options):
    ids = [document.id.encode() for document in DOCUMENTS]
    start, end = options.get("startkey"), options.get("endkey")
    low, high = (end, start) if options.get("descending") else (start, end)
    is_open = not options.get("inclusive_end", True) and end is not None
    found = [
        one
        for one in ids
        if (low is None or one >= low.encode())
        and (high is None or one <= high.encode())
        and not (is_open and one == end.encode())
    ]
    if options.get("descending"):
        found.reverse()
    skip = options.get("skip", 0)
    found = found[skip : skip + options.get("limit", 99)]
    assert [row["id"].encode() for row in listed(**options)["rows"]] == found
