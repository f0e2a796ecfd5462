import json
import os

import pytest

from millstream.databases import design_reading
from millstream.errors import ConditionError, UsageError
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.node.embedded import Node

GOOD = {"views": {"by": {"map": "function (doc) { emit(doc._id) }", "reduce": "_count"}}}


async def test_documents_are_checked_and_kept(tmp_path):
    async with Node(tmp_path, buckets=["a:4"], http=None) as node:
        designs = node.engine.designs
        await designs.check("a", "x", json.dumps(GOOD).encode())
        await designs.check("a", "x", b'{"filters":{}}')
        written = await designs.write("a", "x", b"{}", None, is_durable=True)
    async with Node(tmp_path, http=None) as node:
        designs = node.engine.designs
        assert (await designs.read("a", "x")).rev == written.rev
        assert [one.name for one in await designs.all("a")] == ["x"]
        with pytest.raises(ConditionError, match="no bucket"):
            await designs.read("b", "x")
        with pytest.raises(ConditionError, match="no bucket"):
            await designs.check("b", "x", json.dumps(GOOD).encode())


async def test_a_bucket_created_again_gets_nothing_that_was_read_of_the_old_one(tmp_path):
    def stored(name):
        body = json.dumps({"filters": {name: "doc => true"}}).encode()
        return StoredDesign("x", "1-a", body, False, 0, 1, True)

    async with Node(tmp_path, buckets=["a:4"], http=None) as node:
        engine = node.engine
        uuid = engine.served["a"].uuid
        assert (await engine.designs.known("a", stored("f"))).code.filters == {"f"}
        await engine.delete_bucket("a")
        assert uuid not in {key[0] for key in design_reading._KNOWN._known}
        await engine.create_bucket("a", 4)
        assert (await engine.designs.known("a", stored("g"))).code.filters == {"g"}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"views": {"by": {"map": "function ("}}}, "compilation_error"),
        ({"views": {"by": {"map": "doc => 1", "reduce": "oh no"}}}, "compilation_error"),
        ({"views": {"by": {"map": "'x'.repeat(1e9) + 'y', d => 1"}}}, "compilation_error"),
        ({"validate_doc_update": "function ("}, "compilation_error"),
        ({"filters": {"a": "doc => 1", "b": "no function"}}, "compilation_error"),
        ({"updates": {"a": 1}}, "invalid_design_doc"),
        ({"views": {"by": {"map": 7}}}, "invalid_design_doc"),
        ({"views": []}, "invalid_design_doc"),
        ({"views": {"by": {"map": "doc => 1"}}, "language": "cobol"}, "invalid_design_doc"),
        ({"views": {"by": {"map": "def f"}}, "language": "python"}, "invalid_design_doc"),
        (
            {"views": {"by": {"map": "registered:none"}}, "language": "python"},
            "unknown_function",
        ),
    ],
)
async def test_what_does_not_compile_is_refused(tmp_path, content, code):
    async with Node(tmp_path, buckets=["a:4"], http=None) as node:
        with pytest.raises(UsageError) as caught:
            await node.engine.designs.check("a", "x", json.dumps(content).encode())
    assert caught.value.code == code


async def test_python_functions_are_those_of_the_index_process(tmp_path, monkeypatch):
    module = tmp_path / "functions_of_test.py"
    module.write_text(
        "from millstream.views import register\n"
        "@register('test.there')\n"
        "def there(document):\n"
        "    yield document['_id'], None\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    design = {"views": {"by": {"map": "registered:test.there"}}, "language": "python"}
    options = {"buckets": ["a:4"], "http": None, "python_modules": ["functions_of_test"]}
    async with Node(tmp_path / "d", **options) as node:
        await node.engine.designs.check("a", "x", json.dumps(design).encode())
        design["views"]["by"]["reduce"] = "registered:none"
        with pytest.raises(UsageError, match="none"):
            await node.engine.designs.check("a", "x", json.dumps(design).encode())
