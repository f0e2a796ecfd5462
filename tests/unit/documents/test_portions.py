"""A value that is put together from portions is the value of the text."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.documents import portions as module
from millstream.documents.json_text import parse
from millstream.documents.portions import PORTION_BYTES_MAX, Assembly, portioned
from millstream.errors import UsageError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=60,
)


def assembled(text):
    assembly = Assembly()
    for step in pickle.loads(pickle.dumps(portioned(text))).steps():
        assembly.take(step)
    return assembly.value


@given(VALUES, st.integers(1, 40))
def test_the_value_is_the_same(value, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PORTION_BYTES_MAX", size)
        found = assembled(json.dumps(value).encode())
    assert found == value
    assert json.dumps(found) == json.dumps(value), "in the same order"


def test_no_portion_is_long():
    many = {"a": [f"key-{n}" for n in range(20_000)], "b": {f"m{n}": [n] for n in range(20_000)}}
    text = json.dumps(many).encode()
    found = portioned(text)
    assert max(map(len, found.texts)) < 2 * PORTION_BYTES_MAX
    assert assembled(text) == parse(text)


LATE = b'{"a":[%bx]}' % (b"1," * 10_000)


@pytest.mark.parametrize("text", [b"", b"[1,", b"[" * 100_000, LATE])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(UsageError) as refused:
        assembled(text)
    assert refused.value.code == "bad_json"


def test_numbers_are_those_of_the_text():
    text = b"[%b,1e400]" % b",".join([b"12345678901234567890123"] * 2000)
    with pytest.raises(UsageError):
        assembled(text)
    assert assembled(text.replace(b",1e400", b"")) == [12345678901234567890123] * 2000
