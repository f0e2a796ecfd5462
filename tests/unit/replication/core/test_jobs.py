"""Jobs as they are asked for, and what logs are called."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import AccessError, UsageError
from millstream.replication.core.jobs import (
    Member,
    Proxy,
    check_document,
    member_of,
    parse_job,
    replication_id,
)
from millstream.replication.core.reports import job_name
from support.budget import budget

ENDS = {"source": "http://h:5984/a", "target": "http://h/b"}


@pytest.mark.parametrize(("form", "reason"), [
    ({"source": "a"}, "Missing replicator database"),
    ({"source": "ftp://x/y", "target": "b"}, "endpoint has an invalid url"),
    ({"source": {"url": 5}, "target": "b"}, "endpoint has an invalid url"),
    ({"source": {"url": "http://h/a", "auth": 5}, "target": "b"}, "must be objects"),
    ({**ENDS, "continuous": 1}, "parameter `continuous` must be a boolean"),
    ({**ENDS, "create_target": "x"}, "parameter `create_target` must be a boolean"),
    ({**ENDS, "doc_ids": "x"}, "parameter `doc_ids` must be an array"),
    ({**ENDS, "selector": []}, "parameter `selector` must be a JSON object"),
    ({**ENDS, "query_params": []}, "parameter `query_params` must be an object"),
    ({**ENDS, "doc_ids": [], "filter": "a/b"}, "mutually exclusive"),
    ({**ENDS, "filter": "nothing"}, "Must match `ddocname/filtername`"),
    ({**ENDS, "filter": "_view"}, "Invalid `view` parameter"),
    ({**ENDS, "proxy": "http://p", "source_proxy": "http://q"}, "exclusive with `source_proxy`"),
    ({**ENDS, "proxy": "http://p", "target_proxy": "http://q"}, "exclusive with `target_proxy`"),
    ({**ENDS, "proxy": "p"}, "proxy has an invalid url"),
    ({**ENDS, "proxy": 3}, "proxy has an invalid url"),
    ({**ENDS, "target": "http://h:99999/a"}, "endpoint has an invalid url"),
    ({**ENDS, "target": f"http://{'a' * 64}/a"}, "endpoint has an invalid url"),
    ({**ENDS, "target": "http://a..b/a"}, "endpoint has an invalid url"),
    ({**ENDS, "target": {"url": "http://h/a", "headers": {"X": "a\nb"}}}, "no control"),
    ({**ENDS, "target": {"url": "http://h/a", "auth": {"bearer": "a\rb"}}}, "no control"),
    ({**ENDS, "source_proxy": "socks5://p:1"}, "`source_proxy`: there is no socks5"),
    ({**ENDS, "worker_processes": 0}, "`worker_processes` must be a number"),
    ({**ENDS, "worker_batch_size": True}, "`worker_batch_size` must be a number"),
])  # fmt: skip
def test_wrong_jobs_are_refused(form, reason):
    with pytest.raises(UsageError, match=reason.replace("(", r"\(")) as caught:
        parse_job(form)
    assert caught.value.code == "bad_request"


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"target": "t"}, "The `source' property must exist"),
        ({"source": 5, "target": "t"}, "The `source' property must exist"),
        ({"source": "s", "target": None}, "The `target' property must exist"),
        ({"source": "s", "target": {"url": ""}}, "The url property must exist in the `target'"),
        ({"source": {"url": "s", "auth": None}, "target": "t"}, "`source.auth' must be"),
        ({"source": {"url": "s", "headers": "x"}, "target": "t"}, "`source.headers' must be"),
        ({"source": "s", "target": "t", "create_target": 1}, "`create_target' field"),
        ({"source": "s", "target": "t", "continuous": "true"}, "`continuous' field"),
        ({"source": "s", "target": "t", "doc_ids": "a"}, "`doc_ids' field must be"),
        ({"source": "s", "target": "t", "selector": "a"}, "`selector' field must be"),
        ({"source": "s", "target": "t", "filter": 5}, "`filter' field must be"),
        ({"source": "s", "target": "t", "filter": ""}, "`filter' field must be a non-empty"),
        ({"source": "s", "target": "t", "query_params": None}, "`query_params' field"),
        ({"source": "s", "target": "t", "doc_ids": [], "selector": {}}, "incompatible"),
        ({"source": "s", "target": "t", "doc_ids": [], "filter": "a/b"}, "incompatible"),
        ({"source": "s", "target": "t", "selector": {}, "filter": "a/b"}, "incompatible"),
        ({"source": "s", "target": "t", "user_ctx": 5}, "`user_ctx' property"),
        ({"source": "s", "target": "t", "user_ctx": {"name": ""}}, "`user_ctx.name'"),
        ({"source": "s", "target": "t", "user_ctx": {"roles": "x"}}, "`user_ctx.roles'"),
    ],
)
def test_documents_of_jobs_with_members_of_wrong_types_are_forbidden(form, reason):
    with pytest.raises(AccessError, match=reason) as raised:
        check_document(form)
    assert raised.value.code == "forbidden"
    check_document(form | {"_replication_state": "failed"})


def test_documents_of_jobs_that_couchdb_stores_are_stored():
    check_document({"source": "s", "target": "t"})
    check_document({"source": "s", "target": {"url": "ftp://h", "auth": {}, "headers": {}}})
    check_document(
        {"source": "s", "target": "t", "selector": None, "user_ctx": {"name": None, "roles": []}}
    )
    check_document({"source": "s", "target": "t", "doc_ids": [5], "owner": "x", "more": 1})


def test_credentials_leave_the_address():
    job = parse_job({"source": "https://me:p%40ss@h:6984/a/", "target": "b"})
    assert (job.source.url, job.source.user, job.source.password) == (
        "https://h:6984/a", "me", "p@ss",
    )  # fmt: skip
    assert "p@ss" not in repr(job)
    assert job.source.shown == "https://h:6984/a"
    assert job.target.name == job.target.shown == "b"


def test_credentials_may_stand_beside_it():
    auth = {"basic": {"username": "me", "password": "x"}, "bearer": "t"}
    end = parse_job({"source": {"url": "http://h/a", "auth": auth, "headers": {"X": "1"}},
                     "target": "b", "source_proxy": "http://it:w%40y@p:1"}).source  # fmt: skip
    assert (end.user, end.password, end.token, end.headers) == ("me", "x", "t", {"X": "1"})
    assert end.proxy == Proxy("http://p:1", "it", "w@y")
    assert "w@y" not in repr(end)


def test_numbers_may_be_texts_and_ids_are_unquoted_and_sorted():
    job = parse_job({**ENDS, "worker_processes": "2", "doc_ids": ["b%2Fc", "a", "a"]})
    assert job.worker_processes == 2
    assert job.doc_ids == ("a", "b/c")


def test_identity_is_the_address_without_usual_ports_and_passwords():
    names = {
        parse_job({**ENDS, "source": url}).source.identity
        for url in ("http://me:1@h:5984/a", "http://me:2@h/a/", "http://me@h:80/a")
    }
    assert names == {"remote:me@h:/a"}


def test_code_is_where_the_filter_says():
    assert parse_job(ENDS).function is None
    assert parse_job({**ENDS, "filter": "d/f"}).function == ("d", "filters", "f")
    job = parse_job({**ENDS, "filter": "_view", "query_params": {"view": "d/v"}})
    assert job.function == ("d", "views", "v", "map")


def test_members_of_filters():
    assert member_of(parse_job(ENDS), None) is None
    assert member_of(parse_job({**ENDS, "filter": "_design"}), None) == Member("design")
    assert member_of(parse_job({**ENDS, "doc_ids": ["x"]}), None) == Member("ids", ("x",))
    one = member_of(parse_job({**ENDS, "selector": {"a": 1, "b": 2}}), None)
    same = member_of(parse_job({**ENDS, "selector": {"b": 2, "a": 1}}), None)
    assert one == same
    job = parse_job({**ENDS, "filter": "d/f"})
    assert member_of(job, "one") != member_of(job, "two")


def test_what_implies_what():
    few, many = Member("ids", ("a",)), Member("ids", ("a", "b"))
    content = Member("content", signature="x")
    assert few.implies(many)
    assert not many.implies(few)
    assert content.implies(content)
    assert not few.implies(content)
    assert not content.implies(few)
    assert Member("ids", ("_design/a",)).implies(Member("design"))
    assert not few.implies(Member("design"))
    assert not Member("design").implies(few)


def test_which_names_may_pass():
    assert Member("ids", ("a",)).admits("a")
    assert not Member("ids", ("a",)).admits("b")
    assert Member("design").admits("_design/x")
    assert not Member("design").admits("x")
    assert Member("content").admits("x")


def test_logs_are_named_by_what_passes_between_whom():
    names = [
        replication_id("a", "b", None, winning_revs_only=False),
        replication_id("b", "a", None, winning_revs_only=False),
        replication_id("a", "b", None, winning_revs_only=True),
        replication_id("a", "b", Member("ids", ("x",)), winning_revs_only=False),
    ]
    assert len(set(names)) == 4
    assert names[0] == replication_id("a", "b", None, winning_revs_only=False)


SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=6)
ADDRESSES = st.sampled_from((
    "http://h/a", "https://u:p@h:1/a?x=1", "http://h:99999/a", "http://[::1/a", "http://:5/a", "a",
    "http://h:x/", "http://", "//", "socks5://p:1", "http://[::1]:5984/a", "http://h\n/a", "",
))  # fmt: skip
VALUES = st.recursive(
    SCALARS | ADDRESSES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("url", "auth", "basic", "username", "headers", "view")),
                          inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
NAMES = st.sampled_from((
    "source", "target", "proxy", "source_proxy", "filter", "doc_ids", "selector", "query_params",
    "continuous", "worker_processes", "create_target_params", "since_seq", "checkpoint_interval",
))  # fmt: skip


@settings(max_examples=budget(300))
@given(st.dictionaries(NAMES, VALUES, max_size=5), ADDRESSES, ADDRESSES)
def test_whatever_is_asked_for_is_a_job_or_refused(form, source, target):
    try:
        job = parse_job({"source": source, "target": target} | form)
    except UsageError:
        return
    assert job_name(job)
    for end in (job.source, job.target):
        assert end.identity
        assert "@" not in end.shown
