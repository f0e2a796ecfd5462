"""Design documents of a real node, by the functions that commands use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from millstream.client.databases import Database, DatabaseSettings
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


def test_all_leaves_with_their_attachments_are_brought_to_where_they_are_lacking(
    database: Database,
) -> None:
    attached = {**DESIGN, "_attachments": {"note": {"data": "aGk="}}}
    database.put("_design/leaves", attached)
    taken = database.leaves("_design/leaves", 10_000)
    rev = database.get("_design/leaves")["_rev"]
    database.put("_design/leaves", DESIGN)
    for _ in range(2):
        database.bring(taken)
        assert len(database.leaves("_design/leaves", 10_000)) == 1
    changed = [Raw(bytes(taken[0]).replace(rev.encode(), b"1-" + b"a" * 32))]
    changed = [Raw(bytes(one).replace(rev[2:].encode(), b"a" * 32)) for one in changed]
    database.bring(changed)
    assert len(database.leaves("_design/leaves", 10_000)) == 2
    assert database.leaves("_design/none", 10_000) == []
    with pytest.raises(UsageError) as caught:
        database.leaves("_design/leaves", 100)
    assert caught.value.code == "too_large"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("erlang", {"language": "erlang", "views": {"v": {"map": "fun({Doc}) -> ok end."}}}),
        ("text", {"views": {"v": {"map": "function(doc) { this is nothing"}}}),
        ("forms", {"views": [1], "filters": {"f": 5}, "validate_doc_update": "function ("}),
        ("long", {"views": {"v" * 300: {"map": "function(doc) { emit(1); }"}}}),
    ],
)
def test_what_a_backup_has_is_put_back_though_it_does_not_compile(
    database: Database, name: str, content: dict[str, Any]
) -> None:
    key = f"_design/{name}"
    for number in range(2):
        with pytest.raises(UsageError):
            database.put(key, content | {"number": number})
        database.put_back(key, content | {"number": number})
        found = database.get(key)
        assert found.pop("_rev").startswith(f"{number + 1}-")
        assert found == content | {"_id": key, "number": number}
    assert len(database.leaves(key, 10_000)) == 1


def test_what_the_database_does_not_take_is_said(database: Database) -> None:
    with pytest.raises(UsageError):
        database.bring([Raw(b'{"_id":"_design/x","_rev":"nonsense"}')])


def test_settings_are_set_where_they_are_other_ones(database: Database) -> None:
    before = database.settings()
    wanted = DatabaseSettings({**before.security, "admins": {"names": ["ada"], "roles": []}}, 7)
    for _ in range(2):
        database.set(wanted)
        assert database.settings() == wanted
    database.set(before)
    assert database.settings() == before
