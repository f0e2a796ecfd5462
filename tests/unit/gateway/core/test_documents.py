import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.gateway.core.documents import (
    checked_rev,
    document_pieces,
    is_batch,
    named_rev,
    names_etag,
    parse_destination,
    parse_document,
    refuse_document_options,
)

REV = "2-" + "ab" * 16


def test_members_are_kept_as_they_were_written():
    sent = parse_document(
        b'{"_id":"_design/x", "_rev":"%s","views":{ "a":1.0,"b":100000000000000000000}, "n":1.50}'
        % REV.encode(),
        "_design/x",
    )
    assert sent.body == b'{"views":{ "a":1.0,"b":100000000000000000000},"n":1.50}'
    assert (sent.rev, sent.is_deleted, json.loads(sent.body)["n"]) == (REV, False, 1.5)
    text = b"".join(document_pieces("_design/x", REV, sent.body))
    assert text.startswith(b'{"_id":"_design/x","_rev":"2-abab')
    assert text.endswith(b',"n":1.50}')
    assert b"".join(document_pieces("a", "1-b", b"{}")) == b'{"_id":"a","_rev":"1-b"}'


def test_what_reading_brings_along_may_come_back():
    sent = parse_document(
        b'{"_revisions":{},"_conflicts":[],"_local_seq":1,"_attachments":{}}', "_design/x"
    )
    assert (sent.body, sent.rev) == (b"{}", None)
    assert parse_document(b'{"_deleted":true}', "_design/x").is_deleted
    assert not parse_document(b'{"_deleted":1}', "_design/x").is_deleted


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "bad_json"),
        (b"{", "bad_json"),
        (b"\xff", "bad_json"),
        (b'{"a":"\xff"}', "bad_json"),
        (b"[" * 100_000, "bad_request"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad_json"),
        (b"[]", "bad_request"),
        (b"7", "bad_request"),
        (b'{"_id":"_design/y"}', "bad_request"),
        (b'{"_rev":"x"}', "bad_request"),
        (b'{"_rev":1}', "bad_request"),
        (b'{"_other":1}', "doc_validation"),
        (b'{"_attachments":{"a":{}}}', "doc_validation"),
        (rb'{"\u005fother":1}', "doc_validation"),
    ],
)
def test_what_is_no_document_is_refused(data, code):
    with pytest.raises(UsageError) as caught:
        parse_document(data, "_design/x")
    assert caught.value.code == code


@pytest.mark.parametrize("value", ["", "1", "1-", "-a", "0-a", "01-a", "1-a,b", "1-a\n", None, 1])
def test_revisions_have_a_form(value):
    with pytest.raises(UsageError, match="Invalid rev format"):
        checked_rev(value)


def test_clients_name_what_they_have():
    for header in ('"a"', 'W/"a"', '"b", "a"', "*"):
        assert names_etag(header, '"a"')
    for header in (None, "", "a", '"b"', 'W/"ab"'):
        assert not names_etag(header, '"a"')


def test_a_revision_may_be_named_in_three_places():
    assert named_rev({}, None) is None
    assert named_rev({"rev": REV}, None) == REV
    assert named_rev({}, f'"{REV}"') == named_rev({}, REV) == REV
    assert named_rev({"rev": REV}, f'"{REV}"', REV) == REV
    with pytest.raises(UsageError, match="different values"):
        named_rev({"rev": REV}, "1-a")
    with pytest.raises(UsageError, match="Invalid rev"):
        named_rev({}, "*")


@pytest.mark.parametrize(
    "options", [{"new_edits": "false"}, {"open_revs": "all"}, {"revs": "true"}, {"meta": "true"}]
)
def test_trees_of_revisions_are_refused(options):
    with pytest.raises(UsageError) as caught:
        refuse_document_options(options)
    assert caught.value.code == "not_supported"


def test_other_options_are_no_harm():
    refuse_document_options({"new_edits": "true", "revs": "false", "conflicts": "true"})
    assert is_batch({"batch": "ok"})
    assert not is_batch({"batch": "no"})


def test_destinations_are_design_documents():
    assert parse_destination("_design/y") == ("y", None)
    assert parse_destination(" /_design%2Fa%2Fb?rev=1-a") == ("a/b", "1-a")
    for wrong in (None, "", "y", "_design/", "_design/y?rev=", "_design/y?x=1", "_local/y"):
        with pytest.raises(UsageError):
            parse_destination(wrong)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), st.booleans())
def test_any_object_is_kept_or_refused_with_a_reason(content, is_ascii):
    try:
        data = json.dumps(content, ensure_ascii=is_ascii).encode()
        sent = parse_document(data, "_design/x")
    except (UsageError, UnicodeEncodeError):  # half a surrogate pair is no UTF-8
        return
    kept = {name: value for name, value in content.items() if not name.startswith("_")}
    assert json.loads(sent.body) == kept
    shown = json.loads(b"".join(document_pieces("_design/x", REV, sent.body)))
    assert shown == {"_id": "_design/x", "_rev": REV, **kept}
    assert (
        parse_document(b"".join(document_pieces("_design/x", REV, sent.body)), "_design/x").body
        == sent.body
    )


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_refusal(data):
    with contextlib.suppress(UsageError):
        parse_document(data, "_design/x")


@given(st.text(max_size=40))
def test_no_destination_raises_anything_but_a_refusal(text):
    try:
        name, _ = parse_destination(text)
    except UsageError:
        return
    assert name
