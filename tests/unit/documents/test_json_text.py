"""JSON is read strictly, and bodies are kept as they were written."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents.json_text import (
    INTEGER_DIGITS_MAX,
    JSON_DEPTH_MAX,
    cut,
    is_plain_object,
    parse,
    parse_exactly,
)
from millstream.errors import UsageError

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=4) | st.sampled_from(
    ["_id", "_rev", "a", "b:", '":']
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
FORMS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
EXAMPLES = settings(max_examples=150, deadline=None)


@EXAMPLES
@given(st.dictionaries(NAMES, JSON, max_size=5), FORMS, st.booleans())
def test_a_document_is_cut_in_two(document, separators, ascii_only):
    text = json.dumps(document, separators=separators, ensure_ascii=ascii_only).encode()
    special, body, content = cut(text)
    assert {n: json.loads(t) for n, t in special.items()} == {
        n: v for n, v in document.items() if n.startswith("_")
    }
    rest = {n: v for n, v in document.items() if not n.startswith("_")}
    assert json.loads(body) == content == rest
    assert list(content) == list(rest)
    assert is_plain_object(body)


@EXAMPLES
@given(JSON, FORMS)
def test_both_readers_read_the_same(value, separators):
    text = json.dumps(value, separators=separators).encode()
    found, exact = parse(text), parse_exactly(text)
    assert repr(found) == repr(exact) == repr(value)


def test_values_stay_as_they_were_written():
    text = b' {"b":  {"x": 1.50, "x":[1e3 ] } , "_id":"a" ,"\\u0061":"\\u00fc\\/"}\n'
    special, body, content = cut(text)
    assert special == {"_id": b'"a"'}
    assert body == b'{"b":{"x": 1.50, "x":[1e3 ] },"a":"\\u00fc\\/"}'
    assert content == {"b": {"x": [1000.0]}, "a": "ü/"}
    assert cut(b"{}") == ({}, b"{}", {})
    assert cut(b'{"_id":"a","_rev":"1-a"}').body == b"{}"


def test_of_repeated_members_the_last_counts_where_it_stands():
    assert cut(b'{"a":1,"_x":1,"b":2,"a":{"c":3},"_x":2}') == (
        {"_x": b"2"},
        b'{"b":2,"a":{"c":3}}',
        {"b": 2, "a": {"c": 3}},
    )
    assert list(parse_exactly(b'{"a":1,"b":[{"c":1,"d":2,"c":3}],"a":2}').items()) == [
        ("b", [{"d": 2, "c": 3}]),
        ("a", 2),
    ]


@pytest.mark.parametrize("digits", [1, 19, 20, 4300, 4301, INTEGER_DIGITS_MAX])
@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_of_any_size_are_exact(sign, digits):
    text = f'{{"n":{sign}{"7" * digits}}}'.encode()
    wanted = (10**digits - 1) // 9 * 7 * (-1 if sign else 1)
    assert parse(text)["n"] == parse_exactly(text)["n"] == wanted


def test_a_fraction_or_exponent_makes_a_float():
    found = parse(b"[1,1.0,1e0,-0,-0.0,1E+2,123456789012345678901.0]")
    assert [type(one) for one in found] == [int, float, float, int, float, float, float]
    assert math.copysign(1, found[4]) == -1


@pytest.mark.parametrize("reader", [parse, parse_exactly])
@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"nul", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"01", b"1.",
        b"+1", b"'a'", b'"\n"', b'"\\x"', b"[1,]", b'{"a":1,}', b"1 2", b'"\\ud800"', b'"\\udc00"',
        b'"\\ud800\\u0041"', b'"\xed\xa0\x80"', b'"\xff"', b'"\xc0\x80"', b"\xef\xbb\xbf1",
        b'{"\xff":1}', b"9" * (INTEGER_DIGITS_MAX + 1), b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(reader, text):
    with pytest.raises(UsageError) as caught:
        reader(text)
    assert caught.value.code == "bad_json"


@pytest.mark.parametrize("reader", [parse, parse_exactly])
def test_depth_has_a_bound(reader):
    deep = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    assert reader(deep)
    assert reader(b'["' + b"[" * 10_000 + b'\\""' + b",{}" * 1000 + b"]")
    for wrong in (b"[" + deep + b"]", b'{"a":' * 257 + b"1" + b"}" * 257):
        with pytest.raises(UsageError, match="deeper than 256"):
            reader(wrong)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"[]", "bad_request"),
        (b"7", "bad_request"),
        (b'"a"', "bad_request"),
        (b"{", "bad_json"),
        (b'{"a":"\xff"}', "bad_json"),
        (b'{"a":1e999}', "bad_json"),
        (b'{"a":"\\ud800"}', "bad_json"),
        (b'{"a":' + b"[" * 300 + b"]" * 300 + b"}", "bad_json"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad_json"),
        (b'{"\xff":1}', "bad_json"),
    ],
)
def test_only_objects_are_documents(text, code):
    with pytest.raises(UsageError) as caught:
        cut(text)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("value", "is_plain"),
    [
        (b"{}", True),
        (b' {"a":"_b"}', True),
        (b'{"a":{"_b":1}}', True),
        (b'{"_a":1}', False),
        (b'{"\\u005fa":1}', False),
        (b'{"a":"\xff"}', False),
        (b"[]", False),
        (b"", False),
        (b'{"a":1} x', False),
    ],
)
def test_a_value_is_a_document_if_it_is_an_object_without_special_members(value, is_plain):
    assert is_plain_object(value) is is_plain
