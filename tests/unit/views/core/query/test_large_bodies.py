"""Bodies of queries that may be large."""

import json
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.views.core.query.large_bodies import (
    PORTION_KEYS,
    PackedKeys,
    view_options,
    view_queries,
)


@given(st.lists(st.one_of(st.text(max_size=3), st.none(), st.lists(st.integers(0, 9)))))
def test_packed_keys_are_a_list(keys):
    keys = keys * 40
    packed = pickle.loads(pickle.dumps(PackedKeys(keys)))
    assert (len(packed), list(packed), list(reversed(packed))) == (len(keys), keys, keys[::-1])
    assert packed[:3] == keys[:3]
    assert len(packed._texts) == -(-len(keys) // PORTION_KEYS)


def test_options_of_views_are_checked_and_large_ones_stay_texts():
    keys = [f"k{n}" for n in range(1000)]
    body = json.dumps({"keys": keys, "limit": 3, "junk": 1, "start_key": "a"}).encode()
    with pytest.raises(UsageError):
        view_options(body, {"limit": -1})
    found = view_options(body, {"limit": 4})
    assert (found["limit"], found.keys()) == (4, {"keys", "limit", "startkey"})
    assert msgspec.json.decode(msgspec.json.encode(found))["keys"] == keys
    assert isinstance(found["keys"], msgspec.Raw)
    assert view_options(b"", {"limit": 1}) == {"limit": 1}


def test_each_of_several_queries_is_checked():
    body = b'{"queries":[{"limit":1},{"keys":["a"]}]}'
    assert view_queries(body, {"limit": 2}) == [{"limit": 1}, {"limit": 2, "keys": ["a"]}]
    with pytest.raises(UsageError):
        view_queries(b'{"queries":[{"limit":"x"}]}', {})
