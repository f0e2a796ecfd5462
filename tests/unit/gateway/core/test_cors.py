import pytest

from millstream.gateway.core.cors import answer_headers, is_allowed, preflight_headers

SITE = "https://app.example"


def test_nobody_may_unless_named():
    assert not is_allowed(SITE, frozenset())
    assert answer_headers(SITE, frozenset()) == {}
    assert preflight_headers(SITE, "GET", frozenset()) is None


def test_a_named_site_may_with_its_log_in():
    headers = answer_headers(SITE, {SITE})
    assert headers["Access-Control-Allow-Origin"] == SITE
    assert headers["Access-Control-Allow-Credentials"] == "true"
    assert "etag" in headers["Access-Control-Expose-Headers"]


def test_a_stranger_is_told_nothing_but_that_it_varies():
    assert answer_headers("https://other.example", {SITE}) == {"Vary": "Origin"}
    assert answer_headers(None, {SITE}) == {"Vary": "Origin"}


def test_any_site_may_without_a_stored_log_in():
    headers = answer_headers(SITE, {"*"})
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in headers


@pytest.mark.parametrize("method", ["GET", "PUT", "COPY", "DELETE"])
def test_a_browser_asks_first(method):
    headers = preflight_headers(SITE, method, {SITE})
    assert headers is not None
    assert method in headers["Access-Control-Allow-Methods"]
    assert "if-match" in headers["Access-Control-Allow-Headers"]


@pytest.mark.parametrize("method", ["TRACE", None, "get"])
def test_other_methods_are_not_for_pages(method):
    assert preflight_headers(SITE, method, {SITE}) is None
