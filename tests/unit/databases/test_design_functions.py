"""Functions of stored design documents, by their newest revision."""

import json

import pytest

from millstream.errors import ConditionError, MillstreamError
from millstream.node.embedded import Node
from millstream.views.core.design.design_code import DocumentChange

USER, SECURITY = b'{"db":"b","name":null,"roles":[]}', b"{}"
REFUSES = "function (doc) { if (doc.%s) throw({forbidden: '%s'}); }"


@pytest.fixture
async def node(tmp_path):
    async with Node(tmp_path, buckets=["b:4"], http=None) as node:
        yield node.engine


async def write(node, name, content, rev=None):
    body = None if content is None else json.dumps(content).encode()
    return (await node.designs.write("b", name, body, rev, is_durable=False)).rev


async def refusals(node, *documents):
    changes = [DocumentChange(json.dumps(one).encode(), None) for one in documents]
    found = await node.functions.validate("b", changes, USER, SECURITY)
    return [None if one is None else str(one) for one in found]


async def test_all_design_documents_are_asked_in_their_newest_revision(node):
    assert await refusals(node, {"a": 1}) == [None]
    rev = await write(node, "x", {"validate_doc_update": REFUSES % ("a", "x")})
    await write(node, "y", {"validate_doc_update": REFUSES % ("b", "y")})
    await write(node, "z", {"filters": {"f": "doc => true"}})
    asked = ({"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {})
    assert await refusals(node, *asked) == ["x", "y", "x", None]
    rev = await write(node, "x", {"validate_doc_update": REFUSES % ("c", "x")}, rev)
    assert await refusals(node, *asked, {"c": 1}) == [None, "y", "y", None, "x"]
    await write(node, "x", None, rev)
    assert await refusals(node, {"c": 1}) == [None]


@pytest.mark.parametrize(
    "content",
    [
        {"validate_doc_update": 7}, {"validate_doc_update": "function ("},
        {"validate_doc_update": ""}, {"validate_doc_update": "7"},
        {"validate_doc_update": "fun({Doc}) -> ok end", "language": "erlang"},
    ],
)  # fmt: skip
async def test_a_validator_that_cannot_be_run_lets_nothing_through(node, content):
    rev = await write(node, "x", content)
    assert await node.functions.validates("b")
    (found,) = await refusals(node, {})
    assert "_design/x" in found
    await write(node, "x", {"filters": {}}, rev)
    assert await refusals(node, {}) == [None]


async def test_a_filter_that_cannot_be_run_keeps_nothing_out(node):
    await write(node, "x", {"filters": 7, "updates": {"u": 1}, "views": [], "language": 7})
    await write(node, "y", {"filters": {"f": "("}, "big": 10**30})
    assert not await node.functions.validates("b")
    assert await refusals(node, {}) == [None]
    for name, filter_name in (("x", "f"), ("y", "f"), ("x", "u")):
        with pytest.raises(MillstreamError, match=f"_design/{name}"):
            await node.functions.filter("b", name, filter_name, [b"{}"], b"{}")


async def test_filters_views_and_updates(node):
    functions = node.functions
    content = {
        "filters": {"f": "(doc, req) => doc.n == req.query.n"},
        "views": {"v": {"map": "doc => { if (doc.n) emit(1); }"}},
        "updates": {"u": "(doc, req) => [doc, 'done']"},
    }
    rev = await write(node, "x", content)
    documents = [b'{"n":1}', b'{"n":0}']
    passed = await functions.filter("b", "x", "f", documents, b'{"query":{"n":"1"}}')
    assert passed == [True, False]
    assert await functions.filter_by_view("b", "x", "v", documents) == [True, False]
    assert await functions.update("b", "x", "u", b'{"n":1}', b"{}") == ({"n": 1}, {"body": "done"})
    for call in (
        functions.filter("b", "none", "f", documents, b"{}"),
        functions.filter("b", "x", "none", documents, b"{}"),
        functions.filter_by_view("c", "x", "v", documents),
    ):
        with pytest.raises(ConditionError):
            await call
    await write(node, "x", None, rev)
    with pytest.raises(MillstreamError, match="deleted"):
        await functions.update("b", "x", "u", None, b"{}")
