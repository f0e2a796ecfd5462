"""Signatures are CouchDB's: its own values, and a slow encoder of Erlang's terms beside ours."""

import json
from hashlib import md5
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents.json_text import cut
from millstream.documents.revision_ids import signature_of
from millstream.documents.stored import Attachment
from support.budget import budget

EMPTY = "967a00dff5e02add41819138abb3284d"


def atom(name):
    return b"\x64" + pack(">H", len(name)) + name.encode()


def binary(data):
    return b"\x6d" + pack(">I", len(data)) + data


def integer(number):
    if 0 <= number < 256:
        return b"\x61" + pack(">B", number)
    if -(2**31) <= number < 2**31:
        return b"\x62" + pack(">i", number)
    digits, rest = [], abs(number)
    while rest:
        rest, digit = divmod(rest, 256)
        digits.append(digit)
    size = pack(">B", len(digits)) if len(digits) < 256 else pack(">I", len(digits))
    kind = b"\x6e" if len(digits) < 256 else b"\x6f"
    return kind + size + (b"\x01" if number < 0 else b"\x00") + bytes(digits)


def listed(terms):
    return b"\x6c" + pack(">I", len(terms)) + b"".join(terms) + b"\x6a" if terms else b"\x6a"


class Pairs(list):
    """An object: its members in their order, names once."""


def term(value):
    match value:
        case None | True | False:
            return atom({None: "null", True: "true", False: "false"}[value])
        case Pairs():
            pairs = [b"\x68\x02" + binary(name.encode()) + term(one) for name, one in value]
            return b"\x68\x01" + listed(pairs)
        case int():
            return integer(value)
        case float():
            return b"\x46" + pack(">d", value)
        case str():
            return binary(value.encode())
    is_text = all(type(one) is int and 0 <= one < 256 for one in value)
    if value and is_text and len(value) < 65_536:
        return b"\x6b" + pack(">H", len(value)) + bytes(value)
    return listed([term(one) for one in value])


def as_pairs(pairs):
    return Pairs([pair for at, pair in enumerate(pairs) if pair[0] not in dict(pairs[at + 1 :])])


def naive(text, *, is_deleted=False, parent=(0, 0), attachments=()):
    generation, signature = parent
    document = term(json.loads(text, object_pairs_hook=as_pairs))
    attached = [
        b"\x68\x03" + binary(name.encode()) + binary(kind.encode()) + binary(digest)
        for name, kind, digest in reversed(attachments)
    ]
    above = integer(0) if signature == 0 else binary(signature)
    terms = [term(is_deleted), integer(generation), above, document, listed(attached)]
    return md5(b"\x83" + listed(terms), usedforsecurity=False).hexdigest()


def ours(text, **options):
    _, body, content = cut(text)
    return signature_of(body, content, **options)


def test_couchdb_makes_the_same():
    assert ours(b"{}") == EMPTY
    assert ours(b'{"a":1}') == "23202479633c2b380f79507a776743d5"
    deleted = ours(b"{}", is_deleted=True, parent=f"1-{EMPTY}")
    assert deleted == "eec205a9d413992850a6e32678485900"
    assert ours(b' { "_id" : "x", "a" : 1 }') == "23202479633c2b380f79507a776743d5"


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ('{"a":1,"_replication_state":"completed","_access":["x"]}',
         "7a36b57938785ac7d6e979101df7507d"),
        ('{"a":5e-324}', "f8fc1b07134fb0e1af62a5cb42046ee1"),
        ('{"a":5E-0324}', "f8fc1b07134fb0e1af62a5cb42046ee1"),
        ('{"a":0e-9}', "f8fc1b07134fb0e1af62a5cb42046ee1"),
        ('{"a":4.9e-324}', "f482c46cb65c44053c2de1cce02e45bc"),
        ('{"a":5e-320}', "621f1d5c78372ef3cd9d2cdef224ab32"),
        ('{"a":12345678901234567890123456789012e5}', "2b5b7cbf2b13f88678b26eb339acbf26"),
    ],
)  # fmt: skip
def test_members_and_numbers_count_as_erlang_makes_them_of_couchdbs_json(text, signature):
    assert ours(text.encode()) == signature
    assert ours(text.replace('"_', '"\\u005f').encode()) == signature


def test_a_document_that_begins_anew_counts_its_attachments_alone():
    png = Attachment("image/png", 1, 7, md5(b"second").digest(), b"s" * 32, "", 7)
    other = png._replace(md5=md5(b"first").digest())
    gone = "2-eec205a9d413992850a6e32678485900"
    attachments = {"a": other, "b": png}
    named = ours(b"{}", parent=f"1-{EMPTY}", attachments=attachments)
    assert named == "88fac987408fb4ee0b979bb3e572f153"
    anew = ours(b"{}", parent=gone, attachments=attachments, begins_anew=True)
    assert anew == "e7ae45c437b837c12eae4df43b20f101"
    assert ours(b"{}", parent=gone, begins_anew=True) == "5570e8bbb34412db757c2df4bfa1099b"


def test_the_slow_encoder_makes_the_same():
    assert naive(b"{}") == EMPTY
    assert naive(b'{"a":1}') == "23202479633c2b380f79507a776743d5"
    deleted = naive(b"{}", is_deleted=True, parent=(1, bytes.fromhex(EMPTY)))
    assert deleted == "eec205a9d413992850a6e32678485900"


NUMBERS = (
    st.integers(-3, 300) | st.integers(-(2**33), 2**33) | st.integers(-(10**80), 10**80)
    | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)  # these: see above
)  # fmt: skip
SCALARS = NUMBERS | st.none() | st.booleans() | st.text(max_size=6)
NAMES = st.text(max_size=4).filter(lambda name: name[:1] != "_") | st.sampled_from(
    ["a", "b", "h\x02", '":', "n" * 64, "n" * 65, "é" * 64]
)


class Members(list):
    """Of an object, as they are written: names may come again."""


VALUES = st.recursive(
    SCALARS | st.lists(st.integers(0, 255), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(st.tuples(NAMES, inner), max_size=4).map(Members)
    ),
    max_leaves=12,
)


def text_of(value, space):
    if isinstance(value, Members):
        pairs = (f"{json.dumps(name)}{space}:{text_of(one, space)}" for name, one in value)
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(text_of(one, space) for one in value) + "]"
    return json.dumps(value)


@settings(max_examples=budget(150), deadline=None)
@given(
    st.lists(st.tuples(NAMES, VALUES), max_size=5).map(Members),
    st.sampled_from(["", "", " ", "\n"]),
    st.booleans(),
    st.none() | st.tuples(st.integers(1, 2**53 - 1), st.binary(min_size=16, max_size=16)),
)
def test_both_encoders_agree(members, space, is_deleted, parent):
    text = text_of(members, space).encode()
    rev = None if parent is None else f"{parent[0]}-{parent[1].hex()}"
    wanted = naive(text, is_deleted=is_deleted, parent=parent or (0, 0))
    assert ours(text, is_deleted=is_deleted, parent=rev) == wanted


@pytest.mark.parametrize(
    "text",
    [
        '{"a":[104,2],"x":{"b":1,"c":3,"b":2}}',
        '{"x":{"b" :1,"c":3,"b":2}}',
        '{"a":"h\\u0002m","x":{"b":1,"c":3,"b":2}}',
        '{"x":{"b":"\\":","b":2}}',
        '{"a":1.0}',
        '{"a":1e3}', '{"a":-0.0}', '{"a":0.1}', '{"a":[]}', '{"a":{}}', '{"a":[[],{}]}',
        '{"a":[true,1]}', '{"a":[1,1.0]}', '{"a":[0,255]}', '{"a":[0,256]}', '{"a":[-1]}',
        '{"b":1,"a":2}', '{"a":2,"b":1}', '{"é":"\\u00e9\\ud83d\\ude00"}', '{"a":4294967296}',
        '{"a":2147483648}', '{"a":-2147483648}', '{"a":-2147483649}', '{"a":18446744073709551616}',
        json.dumps({"a": [7] * 65_535}), json.dumps({"a": [7] * 65_536}),
        f'{{"a":{256**255 - 1}}}', f'{{"a":{256**255}}}', f'{{"a":-{256**300}}}',
    ],
)  # fmt: skip
def test_places_where_encoders_go_wrong(text):
    assert ours(text.encode()) == naive(text)


def test_order_and_kind_count():
    texts = [
        b'{"a":1}',
        b'{"a":1.0}',
        b'{"a":"1"}',
        b'{"a":1,"b":2}',
        b'{"b":2,"a":1}',
        b'{"a":[1]}',
    ]
    assert len({ours(text) for text in texts}) == len(texts)


def test_a_foreign_parent_counts_as_its_text():
    assert ours(b"{}", parent="7-é") == naive(b"{}", parent=(7, "é".encode()))
    assert ours(b"{}", parent=f"300-{EMPTY}") == naive(b"{}", parent=(300, bytes.fromhex(EMPTY)))


@settings(max_examples=budget(50), deadline=None)
@given(st.dictionaries(st.text(max_size=4), st.binary(min_size=16, max_size=16), max_size=4))
def test_attachments_count_from_the_last_to_the_first(digests):
    attachments = {
        name: Attachment("text/é", 3, 7, digest, b"s" * 32, "", 7)
        for name, digest in digests.items()
    }
    triples = [(name, "text/é", digest) for name, digest in digests.items()]
    assert ours(b'{"a":1}', attachments=attachments) == naive(b'{"a":1}', attachments=triples)
