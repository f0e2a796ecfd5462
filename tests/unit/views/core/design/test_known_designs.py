"""What a node knows of a design document."""

import json

from millstream.views.core.design.known_designs import read_known


def known(content):
    return read_known("b", "x", "1-a", json.dumps(content).encode())


def test_functions_views_and_indexes_are_known():
    found = known({"filters": {"f": "x"}, "views": {"v": {"map": "m"}}, "large": 10**30})
    assert (found.code.key, found.code.filters) == (("b", "x", "1-a"), {"f"})
    assert (found.told.views, found.indexes) == ({"v"}, [])
    assert json.loads(found.shared)["large"] == 1e30
    query = known({"language": "query", "views": {"v": {"map": {"fields": {"a": "asc"}}}}})
    assert [index.name for index in query.indexes] == ["v"]
    assert query.shared is None


def test_of_a_document_that_is_too_large_nothing_large_is_known():
    found = known({"validate_doc_update": "f", "filters": {"f": "x"}, "large": "x" * 2_000_000})
    assert found.code.validates
    assert found.code.faults.keys() == {"validate_doc_update", "filters"}
    assert len(found.code.text) + len(found.told.text) < 200
