"""Design documents of a real node, by the functions that commands use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.client.databases import Database
from millstream.client.http import HttpClient
from millstream.errors import ConditionError, UsageError
from millstream.node.embedded import EmbeddedNode

DESIGN = {"views": {"by": {"map": "d => emit(d._id)"}}}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path: Path = tmp_path_factory.mktemp("databases") / "d"
    with EmbeddedNode(path, buckets=["a/b:4"]) as node:
        host, _, port = str(node.http).rpartition(":")
        http = HttpClient(host, int(port), user=None, password="", tls=None, timeout_s=30.0)
        yield Database(http, "a/b")


def test_documents_are_replaced_unless_they_name_a_revision(database: Database) -> None:
    first = database.put("_design/x y", DESIGN)
    assert first["id"] == "_design/x y"
    second = database.put("x y", DESIGN)
    assert second["rev"].startswith("2-")
    found = database.get("_design/x y")
    assert found == {"_id": "_design/x y", "_rev": second["rev"], **DESIGN}
    assert database.put("x y", found)["rev"].startswith("3-")
    with pytest.raises(ConditionError) as caught:
        database.put("x y", found)
    assert caught.value.code == "conflict"
    assert database.delete("_design/x y")["rev"].startswith("4-")
    for call in (database.get, database.delete):
        with pytest.raises(ConditionError) as caught:
            call("_design/x y")
        assert caught.value.code == "not_found"


def test_what_does_not_compile_is_said(database: Database) -> None:
    with pytest.raises(UsageError) as caught:
        database.put("bad", {"views": {"by": {"map": "function ("}}})
    assert caught.value.code == "compilation_error"
