"""What a helper process makes of large texts is what this process makes of them."""

import pickle

import pytest

from millstream.documents.json_text import JSON_DEPTH_MAX, parse
from millstream.documents.large_texts import Slices, Unread, bulk_texts, large_sent, sliced
from millstream.documents.revision_ids import signature_of
from millstream.documents.sent import parse_sent
from millstream.errors import UsageError

TEXT = b'{"_id":"a","_rev":"1-%b","n":[1,2.5,{"b":"\xc3\xa9"}],"n":1}' % (b"a" * 32)


def test_a_document_is_what_it_is_here():
    sent, here = pickle.loads(pickle.dumps(large_sent(TEXT))), parse_sent(TEXT)
    assert dict(sent.content) == here.content
    assert sent._replace(term=None, content=here.content) == here
    made = signature_of(sent.body, sent.content, term=sent.term)
    assert made == signature_of(here.body, here.content)


def test_the_members_of_a_body_are_read_when_they_are_asked_for():
    members = Unread(b'{"a":1,"b":2}')
    assert (members["a"], len(members), list(members)) == (1, 2, ["a", "b"])
    assert members.get("c") is None


def test_slices_are_the_texts():
    texts = [b"a", b"", b"bcd"]
    kept = pickle.loads(pickle.dumps(Slices(texts)))
    assert (list(kept), len(kept), kept[1:], kept[2]) == (texts, 3, texts[1:], b"bcd")
    assert list(Slices([])) == []
    with pytest.raises(IndexError):
        kept[3]


@pytest.mark.parametrize("read", [bulk_texts, sliced])
def test_the_documents_of_a_body(read):
    found = read(b'{"docs":[{"a":1}, {"b" : 2}],"new_edits":false}', 2)
    assert list(map(bytes, found.texts)) == [b'{"a":1}', b'{"b" : 2}']
    assert not found.new_edits


def test_a_document_that_is_too_deep_for_a_decoder_costs_no_other():
    deep = b"[" * 5000 + b"]" * 5000
    first, second = bulk_texts(b'{"docs":[{"a":%b},{"b":1}]}' % deep, 2).texts
    with pytest.raises(UsageError):
        parse(bytes(first))
    assert bytes(second) == b'{"b":1}'


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"docs":1}', "bad_request"),
        (b"[]", "bad_request"),
        (b'{"docs":[', "bad_json"),
        (b'{"docs":[1,2,3]}', "too_large"),
    ],
)
def test_what_is_no_body_of_documents_is_refused(body, code):
    with pytest.raises(UsageError) as refused:
        sliced(body, 2)
    assert refused.value.code == code


def test_a_document_as_deep_as_one_may_be_has_a_revision():
    inner = JSON_DEPTH_MAX - 2
    sent = large_sent(b'{"a":[%b,1]}' % (b"[" * inner + b"]" * inner))
    assert len(signature_of(sent.body, sent.content)) == 32
    assert signature_of(sent.body, parse(sent.body)) == signature_of(
        sent.body, sent.content, term=sent.term
    )
