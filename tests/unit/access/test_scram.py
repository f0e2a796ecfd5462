import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.access.scram import (
    attributes,
    decoded,
    encoded,
    escaped_name,
    prepared,
    unescaped_name,
    xor,
)
from millstream.errors import AccessError, RemoteProtocolError


@given(st.text())
def test_names_survive_escaping(name):
    assert unescaped_name(escaped_name(name)) == name
    assert "," not in escaped_name(name)


@given(st.binary())
def test_base64_and_xor(data):
    assert decoded(encoded(data)) == data
    assert xor(data, bytes(len(data))) == data


def test_attributes_keep_blanks_and_equals_signs():
    assert attributes("n=a b,r=x=y 0x1") == {"n": "a b", "r": "x=y 0x1"}


@pytest.mark.parametrize("message", ["", "n", "n=1,n=2", "nn=1", "=1"])
def test_malformed_attributes(message):
    with pytest.raises(RemoteProtocolError):
        attributes(message)


def test_preparation_composes_and_refuses():
    assert prepared("u\u0308") == "\xfc"
    assert prepared("plain text") == "plain text"
    with pytest.raises(AccessError):
        prepared("bell\x07")
