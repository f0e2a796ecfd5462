import pytest

from millstream.errors import ConditionError, UsageError
from millstream.gateway.core.errors import body_of, body_of_status, refused_name


@pytest.mark.parametrize("status", [400, 404, 405, 413, 418, 500, 507])
def test_every_status_has_a_body(status):
    assert set(body_of_status(status)) == {"error", "reason"}


def test_databases_have_the_codes_of_couchdb():
    error = ConditionError("no bucket 'a'", code="bucket_not_found")
    assert body_of(error, "/a/_design/x")["reason"] == "Database does not exist."
    assert body_of(error, "/_millstream/buckets/a")["error"] == "bucket_not_found"
    bad = UsageError("why", code="bad_json")
    assert body_of(bad, "/a") == {"error": "bad_request", "reason": "why"}


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("PUT", "/_mine", "illegal_database_name"), ("PUT", "/_mine/", "illegal_database_name"),
        ("PUT", "/a/_mine", "illegal_docid"), ("PUT", "/_replicator/_x", "illegal_docid"),
        ("GET", "/_mine", None), ("DELETE", "/a/_mine", None), ("PUT", "/a/b/_c", None),
        ("PUT", "/_a/b", None), ("PUT", "/", None),
    ],
)  # fmt: skip
def test_names_that_nothing_can_have(method, path, code):
    found = refused_name(method, path)
    assert (found and found["error"]) == code
