"""Requests and answers in CouchDB's words."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from millstream.documents.tokens import Vector
from millstream.errors import RemoteProtocolError, UnavailableError, UsageError
from millstream.model.position import Position
from millstream.replication.core import http_forms as forms
from millstream.replication.core.asking import (
    TOO_LARGE,
    Changes,
    Diff,
    Difference,
    Document,
    Failure,
    Feed,
    Fetch,
    Row,
    StoreRecords,
    Verify,
    Wanted,
    Write,
)
from millstream.replication.core.coverage import Claim, Record, record_to_json
from millstream.replication.core.places import Place

VECTOR = Vector(1, (Position(1, 5, 5, 5),))


def query_of(sent):
    return {name: values[0] for name, values in parse_qs(urlsplit(sent.path).query).items()}


def test_paths_of_documents():
    assert forms.document_path("a/b c") == "/a%2Fb%20c"
    assert forms.document_path("_design/a/b") == "/_design/a%2Fb"


def test_information_of_a_database_with_vectors():
    told = {"uuid": "u", "branches": [1], "ancestors": ["v"], "purge_epoch": 2,
            "update_seq": VECTOR.text(), "instance_start_time": "0"}  # fmt: skip
    info = forms.info_of(json.dumps(told).encode(), "x")
    assert (info.uuid, info.end, info.branches) == ("u", VECTOR, (1,))
    assert (info.ancestors, info.purge_epoch) == (("v",), 2)


def test_information_of_couchdb():
    info = forms.info_of(b'{"update_seq":"3-g1A","instance_start_time":170}', "x")
    assert (info.uuid, info.identity, info.instance_start_time) == ("", "x", "170")
    with pytest.raises(RemoteProtocolError):
        forms.info_of(b"[]", "x")


@pytest.mark.parametrize(("feed", "method", "wanted"), [
    (Feed(), "GET", {}),
    (Feed(doc_ids=("a",)), "POST", {"filter": "_doc_ids"}),
    (Feed(selector={"a": 1}), "POST", {"filter": "_selector"}),
    (Feed(filter="d/f", query_params={"x": "1", "y": [2]}), "GET",
     {"filter": "d/f", "x": "1", "y": "[2]"}),
])  # fmt: skip
def test_requests_for_changes(feed, method, wanted):
    sent = forms.changes_request(Changes("5-x", 10, feed), timeout_ms=99)
    assert sent.method == method
    common = {
        "style": "all_docs", "limit": "10", "since": "5-x", "feed": "normal", "timeout": "99",
    }  # fmt: skip
    assert query_of(sent) == common | wanted


def test_waiting_and_records():
    sent = forms.changes_request(Changes(0, 10, Feed(), 50, "me"), timeout_ms=99)
    query = query_of(sent)
    assert (query["feed"], query["timeout"], query["coverage"]) == ("longpoll", "50", "me")
    assert "coverage_parts" not in query
    sent = forms.changes_request(Changes(0, 10, Feed(), 0, "me", takes_parts=True), timeout_ms=99)
    assert query_of(sent)["coverage_parts"] == "true"


def test_pages():
    told = {"results": [{"seq": 1, "id": "a", "changes": [{"rev": "1-x"}, {"rev": "1-w"}]}],
            "last_seq": VECTOR.text(), "pending": 4, "complete": False,
            "coverage": [record_to_json(Record("o", "l", "c", Place(1), VECTOR)), 5]}  # fmt: skip
    page = forms.page_of(json.dumps(told).encode(), tells_vectors=True)
    assert page.rows == (Row("a", ("1-x", "1-w")),)
    assert (page.place.vector, page.pending, page.is_complete) == (VECTOR, 4, False)
    assert len(page.records) == 1
    foreign = forms.page_of(b'{"results":[],"last_seq":7}', tells_vectors=False)
    assert (foreign.place, foreign.pending, foreign.is_complete) == (Place(7), None, True)


def test_differences():
    assert json.loads(forms.diff_request(Diff({"a": ("1-x",)})).body) == {"a": ["1-x"]}
    found = forms.differences(b'{"a":{"missing":["1-x"],"possible_ancestors":["1-y"]}}')
    assert found == {"a": Difference(("1-x",), ("1-y",))}


def test_documents_are_asked_for_one_by_one_and_come_as_they_are():
    sent = forms.fetch_request(Fetch((Wanted("a", ("1-x", "1-y"), ("1-z",)),)))
    assert json.loads(sent.body)["docs"] == [
        {"id": "a", "rev": "1-x", "atts_since": ["1-z"]},
        {"id": "a", "rev": "1-y", "atts_since": ["1-z"]},
    ]
    body = b'{"_id":"a","_rev":"2-x","n": 1.0}'
    answer = (b'{"results":[{"id":"a","docs":[{"ok":%b}]},{"id":"a","docs":[{"ok":%b}]},'
              b'{"id":"b","docs":[{"error":{"id":"b","rev":"1-q","error":"not_found"}}]},'
              b'{"id":"c","docs":[{"ok":{"_rev":"1-c","_attachments":{"f":{}}}}]}]}')  # fmt: skip
    found = forms.fetched(answer % (body, body))
    assert found.documents[0] == Document("a", "2-x", body)
    assert found.documents[1].has_attachments
    assert len(found.documents) == 2
    assert found.missing == (("b", "1-q"),)


@pytest.mark.parametrize("code", ["not_my_partition", "node_failed", "majority_unknown"])
def test_what_a_source_cannot_say_now_is_not_missing(code):
    row = {"id": "a", "docs": [{"error": {"id": "a", "rev": None, "error": code}}]}
    with pytest.raises(UnavailableError) as caught:
        forms.fetched(json.dumps({"results": [row]}).encode())
    assert (caught.value.code, caught.value.retry) == (code, "backoff")


def test_revisions_with_attachments():
    path = forms.open_revs_path(Wanted("a/b", ("1-x",), ("1-y",)))
    assert path.startswith("/a%2Fb?")
    assert parse_qs(urlsplit(path).query)["open_revs"] == ['["1-x"]']
    assert "atts_since" not in forms.open_revs_path(Wanted("a", ("1-x",)))


def test_writing():
    body = forms.write_body(Write((Document("a", "1-x", b'{"_id":"a"}'),)))
    assert json.loads(body) == {"new_edits": False, "docs": [{"_id": "a"}]}
    answer = b'[{"ok":true,"id":"b","rev":"1"},{"id":"a","error":"forbidden","reason":"no"}]'
    assert forms.failures(answer) == (Failure("a", "", "forbidden", "no"),)


def test_a_refusal_without_an_id_or_of_another_form_is_read():
    answer = b'[{"id":null,"rev":null,"error":"bad_request","reason":{"a":1}},{"error":"x"}]'
    first, second = forms.failures(answer)
    assert first == Failure("", "", "bad_request", '{"a":1}')
    assert second == Failure("", "", "x")


@pytest.mark.parametrize("depth", [300, 2_000, 100_000])
def test_a_document_passes_or_is_asked_for_alone_however_deep_it_is(depth):
    body = b'{"_id":"a","_rev":"1-a","x":' + b"[" * depth + b"]" * depth + b"}"
    answer = b'{"results":[{"id":"a","docs":[{"ok":' + body + b"}]}]}"
    if depth < 500:
        assert forms.fetched(answer).documents == (Document("a", "1-a", body),)
        return
    with pytest.raises(UsageError) as caught:
        forms.fetched(answer)
    assert caught.value.code == TOO_LARGE


def test_records_about_others():
    record = Record("o", "l", "c", Place(1), VECTOR)
    sent = forms.store_request(StoreRecords((record,), ("x",)))
    assert json.loads(sent.body) == {"records": [record_to_json(record)], "removed": ["x"]}
    claims = (Claim("l", "c", Place("", VECTOR), True), Claim("l", "d", Place(3), False))
    told = json.loads(forms.verify_request(Verify(claims)).body)["claims"]
    assert [each["vec"] is None for each in told] == [False, True]
    form = told[0]["vec"]
    answer = json.dumps({"vectors": [form, None]}).encode()
    assert forms.vectors_of(answer, 2) == [VECTOR, None]
    with pytest.raises(RemoteProtocolError):
        forms.vectors_of(answer, 3)
    with pytest.raises(RemoteProtocolError):
        forms.vectors_of(b'{"vectors":[{"a":1}]}', 1)


@pytest.mark.parametrize("changes", [None, [], [{}], [None], "1-a", [{"rev": 1}]])
def test_a_change_that_names_its_document_only_is_a_row_with_a_reason(changes):
    rows = [{"id": "good", "seq": 1, "changes": [{"rev": "1-a"}]}, {"id": "bad", "seq": 2}]
    if changes is not None:
        rows[1]["changes"] = changes
    data = json.dumps({"results": rows, "last_seq": "2"}).encode()
    page = forms.page_of(data, tells_vectors=True)
    good, bad = page.rows
    assert good == Row("good", ("1-a",))
    assert (bad.name, bad.revs, bool(bad.reason)) == ("bad", (), True)


@pytest.mark.parametrize("row", [{}, None, 7, {"id": 1}, {"changes": [{"rev": "1-a"}]}])
def test_a_change_without_a_document_is_an_error_that_names_its_sequence(row):
    if isinstance(row, dict):
        row = {"seq": "7-x", **row}
    data = json.dumps({"results": [row], "last_seq": "7-x"}).encode()
    with pytest.raises(RemoteProtocolError, match='"7-x"' if isinstance(row, dict) else "change"):
        forms.page_of(data, tells_vectors=True)


@pytest.mark.parametrize("end", [b'"last_seq":null', b'"last_seq":true', b'"pending":0'])
def test_a_page_that_does_not_say_where_it_ends_is_none(end):
    with pytest.raises(RemoteProtocolError):
        forms.page_of(b'{"results":[],%b}' % end, tells_vectors=True)
