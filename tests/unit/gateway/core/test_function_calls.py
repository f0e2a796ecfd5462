from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MillstreamError, UsageError
from millstream.gateway.core.function_calls import (
    ANSWER_HEADER_BYTES_MAX,
    ANSWER_HEADERS_MAX,
    FORM_FIELDS_MAX,
    FORM_TYPE,
    form_of,
    rendered,
    seen_headers,
    seen_path,
    seen_text,
)


def test_no_function_sees_by_what_somebody_logged_in():
    sent = [
        ("authorization", "Bearer x"), ("COOKIE", "AuthSession=x"), ("Proxy-Authorization", "x"),
        ("content-type", "text/plain"), ("X-Tag", "1"),
    ]  # fmt: skip
    assert seen_headers(sent) == {"Content-Type": "text/plain", "X-Tag": "1"}


def test_bytes_that_are_no_text_are_replaced():
    odd = b"a\xff".decode(errors="surrogateescape")
    assert seen_headers([("X-Odd", odd)]) == {"X-Odd": "a\ufffd"}
    assert seen_text(odd + "\u00e4") == "a\ufffd\u00e4"


def test_addresses_and_forms():
    path = seen_path("/a%2Fb/_design/d/_update/f/x%20y")
    assert path == ["a/b", "_design", "d", "_update", "f", "x y"]
    assert form_of(FORM_TYPE, "a=1&b=&c=%C3%A4") == {"a": "1", "b": "", "c": "\u00e4"}
    assert form_of("application/json", "a=1") == {}
    with pytest.raises(UsageError, match="fields"):
        form_of(FORM_TYPE, "a=1&" * (FORM_FIELDS_MAX + 1))


@pytest.mark.parametrize(
    ("answer", "body", "content_type"),
    [
        ({}, b"", "text/html; charset=utf-8"),
        ({"body": "\u00e4\ud800"}, b"\xc3\xa4?", "text/html; charset=utf-8"),
        ({"json": {"a": [1]}}, b'{"a":[1]}\n', "application/json"),
        ({"base64": b64encode(b"\x00").decode()}, b"\x00", "application/binary"),
        ({"body": "x", "headers": {"content-type": "text/plain"}}, b"x", None),
    ],
)
def test_answers(answer, body, content_type):
    found = rendered(answer)
    assert (found.code, found.body) == (None, body)
    assert found.headers.get("Content-Type") == content_type
    assert found.headers["Content-Security-Policy"] == "sandbox"


def test_codes():
    assert rendered({"code": 302.0, "headers": {"Location": "/x"}}).code == 302
    assert rendered({"code": 204, "body": "x"}).body == b""
    assert rendered({"headers": {"X-N": 3, "Age": 2.0}}).headers["X-N"] == "3"


@pytest.mark.parametrize(
    "answer",
    [
        {"code": 100}, {"code": 600}, {"code": "200"}, {"code": True}, {"code": 200.5},
        {"code": float("inf")}, {"body": 1}, {"base64": "?"}, {"base64": []},
        {"body": "x", "json": 1}, {"headers": []}, {"headers": {"X": None}},
        {"headers": {"X": True}},
        {"headers": {"X": "a\r\nSet-Cookie: b"}}, {"headers": {"a b": "x"}},
        {"headers": {"": "x"}}, {"headers": {"X": "x" * ANSWER_HEADER_BYTES_MAX}},
        {"headers": {f"x{n}": "" for n in range(ANSWER_HEADERS_MAX + 1)}},
        {"headers": {"Set-Cookie": "a=b"}}, {"headers": {"content-length": "1"}},
        {"headers": {"Access-Control-Allow-Origin": "*"}},
        {"headers": {"content-security-policy": "none"}},
        {"headers": {"Clear-Site-Data": "*"}},
    ],
)  # fmt: skip
def test_answers_that_cannot_be_sent(answer):
    with pytest.raises(MillstreamError) as failure:
        rendered(answer)
    assert failure.value.code == "render_error"


_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
_anything = st.recursive(
    _values, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(), one, max_size=3)
)


@given(st.dictionaries(st.sampled_from(["code", "headers", "body", "json", "base64"]), _anything))
def test_whatever_a_function_answers_is_sent_or_refused(answer):
    try:
        found = rendered(answer)
    except MillstreamError:
        return
    assert found.code is None or 200 <= found.code <= 599
    assert not any("\n" in text for pair in found.headers.items() for text in pair)
