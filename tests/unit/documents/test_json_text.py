"""Texts are cut and come together again, and what is no document is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents import json_text
from millstream.documents.json_text import (
    INTEGER_DIGITS_MAX,
    JSON_DEPTH_MAX,
    KEPT_MEMBERS,
    cut,
    emptied,
    is_plain_object,
    may_repeat,
    parse,
    parse_exactly,
)
from millstream.errors import UsageError
from support.budget import budget

MIB = 1 << 20
EXAMPLES = settings(max_examples=budget(100), deadline=None)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(-(10**60), 10**60)
    | st.text(max_size=8) | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
NAMES = st.text(max_size=4) | st.sampled_from(["a", "_id", "_b", '":', '"', "\\", "a "])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
SPACES = st.sampled_from(["", "", "", " ", "\n\t", " \r "])


@st.composite
def written(draw, value):
    """A value as somebody may write it: spaces, escapes."""
    space = draw(SPACES)
    if isinstance(value, dict):
        return joined(draw, list(value.items()))
    if isinstance(value, list):
        inside = f"{space},".join(draw(written(one)) for one in value)
        return f"[{space}{inside}{space}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=draw(st.booleans()))
    return json.dumps(value)


def joined(draw, pairs):
    members = []
    for name, value in pairs:
        text = draw(written(name))
        if name and draw(st.sampled_from([False, False, True])) and ord(name[0]) < 0x10000:
            text = f'"\\u{ord(name[0]):04X}' + json.dumps(name[1:])[1:]
        members.append(f"{text}{draw(SPACES)}:{draw(SPACES)}{draw(written(value))}")
    space = draw(SPACES)
    return f"{{{space}" + f"{space},".join(members) + f"{space}}}"


def last_ones(pairs):
    members = {}
    for name, value in pairs:
        members.pop(name, None)
        members[name] = value
    return members


def same(one, other):
    """Equal, of the same types, members in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


@EXAMPLES
@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), st.data())
def test_members_are_cut_out_and_the_rest_stays_as_it_was(pairs, data):
    """Also with names that come again: the last counts, where it stands."""
    text = joined(data.draw, pairs).encode()
    special, body, content = cut(text)
    wanted = last_ones(pairs)
    assert {name: json.loads(raw) for name, raw in special.items()} == {
        name: value for name, value in wanted.items() if name.startswith("_")
    }
    plain = {name: value for name, value in wanted.items() if not name.startswith("_")}
    assert same(json.loads(body, object_pairs_hook=last_ones), plain)
    assert content == plain
    assert same(parse_exactly(body), plain)
    assert cut(body) == ({}, body, content)
    assert is_plain_object(body)
    assert is_plain_object(text) == (not special)


@EXAMPLES
@given(VALUES, st.data())
def test_values_are_what_json_says(value, data):
    text = data.draw(written(value)).encode()
    assert same(parse(text), value)
    assert same(parse_exactly(text), value)


def test_values_stay_as_they_were_written():
    text = b' { "_id" : "x" , "a" : { "b" :1.50e+2 , "b": [ 1 ,2] } , "\\u0063" : "\\u00e9\\/" } '
    assert cut(text).body == b'{"a":{ "b" :1.50e+2 , "b": [ 1 ,2] },"c":"\\u00e9\\/"}'
    assert cut(text).special == {"_id": b'"x"'}


@pytest.mark.parametrize("space", ["", " ", "\n"])
def test_repeated_members_stand_where_the_last_stands(space):
    text = f'{{"a"{space}:1,"b":2,"_c":3,"a":4,"_c":5}}'.encode()
    assert cut(text) == ({"_c": b"5"}, b'{"b":2,"a":4}', {"b": 2, "a": 4})
    inside = f'{{"x":{{"a"{space}:1,"b":2,"a":4}}}}'.encode()
    assert list(parse_exactly(inside)["x"]) == ["b", "a"]
    assert may_repeat(inside, 3)
    assert not may_repeat(b'{"x":{"b":2,"a":4}}', 3)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"}", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{"a":1}x', b"{'a':1}", b'{"a":01}',
        b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":1e999}', b'{"a":-1e999}',
        b'{"a":1e400,"a":1}', b'{"a":"\\ud800"}', b'{"\\udfff":1}', b'{"a":"\\ud800\\ud800"}',
        b'{"a":"\\udc00\\ud800"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xff"}', b'{"\xff":1}',
        b'{"_a":"\xff"}', b'{"a":"\n"}', b'{"a":"\\x"}', b'{"a":.5}', b'{"a":+1}',
        b'\xef\xbb\xbf{}',        b'{"a":1.}', b'{"a":nul}', b'{"a":"\\u00"}', b'{"a":-}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(text):
    for read in (parse_of_all, parse, parse_exactly):
        with pytest.raises(UsageError) as caught:
            read(text)
        assert caught.value.code == "bad_json"


def parse_of_all(text):
    for raw in cut(text).special.values():
        parse(raw)


@pytest.mark.parametrize("text", [b"[]", b"7", b'"a"', b"null", b"[{}]"])
def test_what_is_no_object_is_no_document(text):
    with pytest.raises(UsageError, match="must be a JSON object") as caught:
        cut(text)
    assert caught.value.code == "bad_request"
    assert not is_plain_object(text)


def nested(depth, opening=b"[", closing=b"]"):
    return (
        b'{"a":' + opening * (depth - 1) + b"0" * (closing != b"]") + closing * (depth - 1) + b"}"
    )


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_has_a_limit(opening, closing):
    assert cut(nested(JSON_DEPTH_MAX, opening, closing)).content["a"]
    for depth in (JSON_DEPTH_MAX + 1, 2 * JSON_DEPTH_MAX, 10_000):
        for read in (cut, parse, parse_exactly):
            with pytest.raises(UsageError) as caught:
                read(nested(depth, opening, closing))
            assert caught.value.code == "bad_json"
    wide = b'{"a":[' + b",".join([b"[[]]"] * 1000) + b'],"b":"' + b"[{" * 1000 + b'\\""}'
    assert len(cut(wide).content["a"]) == 1000


def test_members_that_couchdb_keeps_are_content():
    text = b'{"_id":"x","b":1,"_access":[1.0],"_replication_state":"done","\\u005frev":"1-a"}'
    kept = cut(text)
    assert kept.body == b'{"b":1,"_access":[1.0],"_replication_state":"done"}'
    assert set(kept.special) == {"_id", "_rev"}
    assert all(is_plain_object(b'{"%b":1}' % name.encode()) for name in KEPT_MEMBERS)
    assert not is_plain_object(b'{"_access":1,"_other":1}')


def test_what_lies_too_deep_is_left_out():
    assert emptied(b'[{"a":[1,{"b":2}],"c":"]["},3]', 2) == b'[{"a":[],"c":"]["},3]'
    assert emptied(b'[[[1],{"a":[2]}],[3]]', 1) == b"[[],[]]"
    for text in (b'{"a":[1]}', b"7", b'"[\\"[["', b""):
        assert emptied(text, 5) == text
    for depth in (300, 100_000):
        left = emptied(nested(depth), 10)
        assert left == nested(11)
    assert emptied(b"[" * 100_000, 2) == b"[[["


@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_are_exact_up_to_a_limit(sign):
    for digits in (18, 19, 20, 21, 3999, 4000, 4001, 4301, 9001, INTEGER_DIGITS_MAX - 1):
        text = sign + "1" + "0" * (digits - 2) + "7"
        number = 10 ** (digits - 1) + 7
        assert cut(f'{{"a":{text}}}'.encode()).content == {"a": -number if sign else number}
        assert cut(f'{{"a":{text}}}'.encode()).body == f'{{"a":{text}}}'.encode()
    with pytest.raises(UsageError, match="an integer of more than"):
        cut(f'{{"a":{sign}{"7" * (INTEGER_DIGITS_MAX + 1)}}}'.encode())


def test_numbers_keep_their_kind():
    content = cut(b'{"a":[1,1.0,1e3,-0,-0.0,18446744073709551616,1E-400]}').content["a"]
    assert [repr(one) for one in content] == [
        "1", "1.0", "1000.0", "0", "-0.0", "18446744073709551616", "0.0",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        (b'{"a":' + b"[" * MIB, False),
        (b'{"a":' + b"[" * (MIB // 2) + b"]" * (MIB // 2) + b"}", False),
        (b'{"a":[' + b"[]," * (MIB // 3) + b"1]}", True),
        (b'{"a":[' + (b"[" * 250 + b"]" * 250 + b",") * (MIB // 501) + b"1]}", True),
        (b'{"a":"' + b'\\"' * (MIB // 2) + b'"}', True),
        (b'{"a":"' + b'\\"' * (MIB // 2), False),
        (b'{"a":"' + b"[" * MIB + b'"}', True),
        (b'{"a":[' + b'"",' * (MIB // 3) + b"[]," * 300 + b"1]}", True),
        (b'{"a":"' + b'\\" ' * (MIB // 3) + b'"}', True),
        (b'{"a"' + b" " * MIB + b":1}", True),
        (b"{" + b'"a":1,' * (MIB // 6) + b'"b":2}', True),
        (b"{" + b",".join(b'"_%d":1' % i for i in range(MIB // 11)) + b"}", True),
        (b'{"a":[' + b",".join([b"9" * INTEGER_DIGITS_MAX] * 52) + b"]}", True),
        (b'{"a":[' + b"99999999999999999999," * (MIB // 21) + b"1]}", True),
        (b'{"a":' + b"9" * MIB + b"}", False),
        (b'{"a":0.' + b"9" * MIB + b"}", True),
        (b'{"a":1e-' + b"9" * MIB + b"}", True),
    ],
    ids=range(17),
)
def test_no_text_takes_long(text, is_taken):
    """What took time by the square of its size would take minutes."""
    try:
        cut(text)
    except UsageError:
        assert not is_taken
    else:
        assert is_taken


def test_no_plain_object_has_a_name_that_begins_with_an_underscore():
    values = [b'{"a":"_b"}', b'{"a":{"_b":1}}', b'{"a":"\\u005f"}', b"{}", b' {"a" : 1}\n']
    assert all(map(is_plain_object, values))
    values = [b'{"_a":1}', b'{"\\u005Fa":1}', b'{"\\u005fa":1}', b'{"a":1,"_b":{}}', b"\xff", b""]
    assert not any(map(is_plain_object, values))
    assert not is_plain_object(b'{"a":"\xff"}')


def test_more_values_than_may_be_are_refused_before_they_are_read(monkeypatch):
    monkeypatch.setattr(json_text, "VALUES_MAX", 10)
    for text in (
        b"[1,2,3,4,5,6,7,8,9,0]",
        b'{"a":[[],[],[],[]]}',
        b'"' + b"x" * 99 + b'"',
    ):
        json_text.check_values(text)
    for text in (
        b"[1,2,3,4,5,6,7,8,9,0,1]", b"[[],[],[],[],[],[],[]]",
        b"[{},{},{},{},{},{},{}]", b"[" * 99,
    ):  # fmt: skip
        for read in (json_text.check_values, json_text.parse, json_text.cut):
            with pytest.raises(UsageError) as refused:
                read(text)
            assert refused.value.code == "too_large"


@pytest.mark.parametrize(
    "empty", [b"[]", b"{}", b"0", b'""', b"[[]]", b"[{}]", b'{"":[]}', b"null"]
)
def test_empty_values_count_wherever_values_are_counted(monkeypatch, empty):
    """The smallest texts with more values than there may be, also in a value that kv wrote."""
    monkeypatch.setattr(json_text, "VALUES_MAX", 10)
    monkeypatch.setattr(json_text, "_VALUE_BYTES_MIN", 1)

    def text_of(count):
        return b'{"a":[%b]}' % b",".join([empty] * count)

    values = 1 + empty.count(b"[") + empty.count(b"{")  # of each: the comma counts, and brackets
    fits = (10 - 1) // values
    assert json_text.parse(text_of(fits))
    assert json_text.is_plain_object(text_of(fits))
    with pytest.raises(UsageError, match="values"):
        json_text.parse(text_of(11))
    with pytest.raises(UsageError, match="values"):
        json_text.cut(text_of(11))
    assert not json_text.is_plain_object(text_of(11))


def test_depth_and_colons_are_found_in_long_texts_as_in_short_ones(monkeypatch):
    texts = [
        b'{"a' + b"x" * 50 + b'":[["]' + b"\\\"[" * 9 + b'"]],"b" :1}',
        b'["\\\\",["[[[[[["],{"":"}"}]',
        b"[" * 5 + b"]" * 5,
        b'["' + b'\\"' * 30 + b'",[[[[1]]]]]',
        b'["" , "" ]',
        b'{"a"   :[]}',
    ]  # fmt: skip
    monkeypatch.setattr(json_text, "JSON_DEPTH_MAX", 4)

    def seen(text):
        try:
            json_text.parse(text)
        except UsageError as error:
            return str(error)
        return json_text.may_repeat(text, text.count(b'":'))

    short = list(map(seen, texts))
    assert {type(one) for one in short} == {str, bool}
    assert {one for one in short if isinstance(one, bool)} == {True, False}
    monkeypatch.setattr(json_text, "WINDOW_BYTES", 7)
    assert list(map(seen, texts)) == short


def test_a_body_is_no_longer_than_a_value(monkeypatch):
    monkeypatch.setattr(json_text, "VALUE_BYTES_MAX", 20)
    assert json_text.cut(b'{"_a":"01234567890123456789","b":1}').body == b'{"b":1}'
    with pytest.raises(UsageError) as refused:
        json_text.cut(b'{"a":"01234567890123456789"}')
    assert refused.value.code == "document_too_large"
