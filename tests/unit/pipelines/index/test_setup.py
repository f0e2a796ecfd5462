"""Which indexes a pipeline keeps; with a node: tests/e2e/test_outside_index.py."""

import json
import sys
from typing import ClassVar

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index import setup
from millstream.pipelines.index.setup import files_of_modules, index_state_of, put_design
from millstream.pipelines.index.shard import IndexState
from millstream.wire.cluster_map import ClusterMap, NodeAddress

DESIGN = {"_id": "_design/d", "views": {"v": {"map": "function (doc) { emit(1); }"}}}


class Put:
    """A bucket that takes design documents."""

    documents: ClassVar[dict[str, dict]] = {}

    def get(self, key):
        if key not in Put.documents:
            raise ConditionError("missing")
        return Put.documents[key]

    def put(self, key, content):
        assert Put.documents.get(key) != content, "the file exists already"
        Put.documents[key] = content


def database_of(name):
    assert name in ("d", "sums")
    return Put()


@pytest.fixture(autouse=True)
def database():
    Put.documents = {}


def test_a_design_document_is_named_with_or_without_its_prefix():
    assert put_design(database_of, "_design/d") == put_design(database_of, "d") == "d"
    assert Put.documents == {}


def test_a_file_is_put_as_one_for_spark(tmp_path):
    path = tmp_path / "any.json"
    path.write_text(json.dumps({**DESIGN, "engine": "node"}))
    assert put_design(database_of, str(path)) == "d"
    assert Put.documents == {"_design/d": {**DESIGN, "engine": "spark"}}
    assert put_design(database_of, str(path)) == "d"


def test_a_file_without_an_id_is_called_by_its_own_name(tmp_path):
    path = tmp_path / "sums.json"
    path.write_text(json.dumps({"views": DESIGN["views"]}))
    assert put_design(database_of, str(path)) == "sums"


@pytest.mark.parametrize("text", [None, "[]", "{", '{"_id": "_design/d", "views": []}'])
def test_an_invalid_file_is_refused(tmp_path, text):
    path = tmp_path / "d.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError):
        put_design(database_of, str(path))


def test_modules_beside_are_shipped(tmp_path, monkeypatch):
    (tmp_path / "my_functions.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    files = files_of_modules(["my_functions", "json"])
    assert [path.name for path in files] == ["my_functions.py"]
    with pytest.raises(UsageError):
        files_of_modules(["not_there_at_all"])


NODES = (NodeAddress("a", 1), NodeAddress("b", 2))


class Bucket:
    """Two nodes with HTTP; a client and its map."""

    cluster_map = ClusterMap(1, 1, NODES, (0, 1), {}, "u", NODES[0], (8, 9))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def partition_of(self, key):
        return 0


@pytest.mark.parametrize("code", ["no_index_role", "unreachable"])
def test_progress_is_shown_for_nodes_that_report(monkeypatch, code):
    states = {
        name: IndexState(
            signature="s", engine="spark", writer="w", fence=1, commit=1, committed_ms=0,
            is_empty=False, trees=1, rows=[rows], states=dict(zip((0, 1), kept, strict=True)),
            positions={0: [7, rows, 0, 0], 1: [7, rows, 0, 0]},
        )
        for name, rows, kept in (("a", 3, ("active", "passive")), ("b", 4, ("passive", "active")))
    }  # fmt: skip

    class Shard:
        def __init__(self, address):
            self.name = address.host

        def state(self):
            if self.name not in states:
                raise UnavailableError("no", code=code)
            return states[self.name]

    monkeypatch.setattr(setup, "open_client", lambda source: Bucket())
    monkeypatch.setattr(setup, "IndexShard", Shard)
    source = parse_options({"bucket": "b"})
    found = index_state_of(source, "d")
    assert (found.rows, {p: at[1] for p, at in found.positions.items()}) == ([7], {0: 3, 1: 4})
    del states["b"]
    found = index_state_of(source, "d")
    assert (found.rows, {p: at[1] for p, at in found.positions.items()}) == ([3], {0: 3})
    del states["a"]
    with pytest.raises(UnavailableError) as caught:
        index_state_of(source, "d")
    assert caught.value.code == code
