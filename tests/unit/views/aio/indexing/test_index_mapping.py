"""From changes to rows of trees, in both languages."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import UnavailableError, UsageError
from millstream.model.lineage import born
from millstream.model.revision import Revisions
from millstream.views.aio.indexing import index_mapping
from millstream.views.aio.indexing.index_mapping import IndexMapper
from millstream.views.core.collation import encode_key, encode_raw_key
from millstream.views.core.design.design_documents import parse_design
from millstream.views.core.design.documents import Changes
from millstream.views.core.design.registered import register
from millstream.views.core.index.header import DocumentRows
from millstream.views.core.rows import EKEY_BYTES_MAX, row_key, row_value
from millstream.wire.frames import deletion, mutation
from support.budget import budget
from support.node.waiting import until

UUID = "0123456789abcdef0123456789abcdef"
LINEAGE = born(1 << 50, 12)


@register("test.index.by_n")
def by_n(document):
    for n in document.get("n", []):
        yield n, document["_rev"][:2]
    if document.get("bad"):
        raise ValueError("bad document")


@register("test.index.key")
def key_of(document):
    return [(document.get("key"), 1)]


@register("test.index.total")
def total(keys, values, rereduce):
    return sum(values)


JAVASCRIPT = {
    "by_n": "d => { for (const n of d.n || []) emit(n, d._rev.slice(0, 2));"
    " if (d.bad) throw new Error('bad document'); }",
    "key": "d => emit(d.key, 1)",
    "total": "(k, v) => sum(v)",
}
PYTHON = {name: f"registered:test.index.{name}" for name in JAVASCRIPT}


def design_of(language, **options):
    source = PYTHON if language == "python" else JAVASCRIPT
    views = {
        "a": {"map": source["by_n"], "reduce": "_count"},
        "b": {"map": source["by_n"]},
        "c": {"map": source["key"], "options": {"collation": "raw"}, "reduce": source["total"]},
    }
    return parse_design({"views": views, "language": language, **options}, "d")


@pytest.fixture(params=["javascript", "python"])
def mapper(request):
    opened = IndexMapper(design_of(request.param), UUID)
    yield opened
    opened.close()


def trees_of(mapper):
    """Numbers of the trees of by_n and of key."""
    names = [mapper._design.names_of(at) for at in range(2)]
    return names.index(("a", "b")), names.index(("c",))


def put(key, value, partition=3):
    return mutation(partition, key, json.dumps(value).encode(), 7, 4, 1, 0, 0, 1)


def mapped(mapper, *frames):
    return mapper.map(Changes(frames, [LINEAGE] * len(frames)))


def test_rows_of_documents_by_tree(mapper):
    by_n, key = trees_of(mapper)
    found = mapped(
        mapper,
        put(b"x", {"n": [1, 2.5, 1], "key": "k"}),
        deletion(4, b"gone", 8, 2, 1, 1),
        put(b"_design/d", {}),
        put(b"y", {}, partition=5),
        mutation(6, b"z", b"no json", 7, 1, 1, 0, 0, 0),
    )
    text = b'"4-"'
    rows = [
        (by_n, encode_key(1), b"1", text), (by_n, encode_key(2.5), b"2.5", text),
        (by_n, encode_key(1), b"1", text), (key, encode_raw_key("k"), b'"k"', b"1"),
    ]  # fmt: skip
    null = (key, encode_raw_key(None), b"null", b"1")
    assert [(*document[:2], sorted(document[2])) for document in found.documents] == [
        (3, b"x", sorted(rows)), (4, b"gone", []), (5, b"y", [null]), (6, b"z", [null]),
    ]  # fmt: skip
    assert isinstance(found.documents[0], DocumentRows)
    assert [row for row in found.documents[0].rows if row[0] == by_n] == rows[:3]
    assert found.failures == []


def test_a_failing_map_loses_only_its_own_rows(mapper):
    by_n, key = trees_of(mapper)
    found = mapped(mapper, put(b"x", {"n": [1], "bad": 1}), put(b"y", {"n": [1]}))
    assert [[row[0] for row in document.rows] for document in found.documents] == [
        [key], sorted([by_n, key])
    ]  # fmt: skip
    ((partition, failure),) = found.failures
    assert (partition, failure.tree, failure.doc_id) == (3, by_n, "x")
    assert "bad document" in failure.message


def test_bad_keys_lose_only_rows_of_their_tree(mapper):
    by_n, key = trees_of(mapper)
    deep: object = 1
    for _ in range(250):
        deep = [deep]
    bad = [deep, "x" * EKEY_BYTES_MAX, ["y" * EKEY_BYTES_MAX]]
    found = mapped(
        mapper,
        put(b"good", {"n": [1], "key": 1}),
        *(put(b"bad", {"n": [1], "key": each}) for each in bad),
        put(b"other", {"n": [1, deep], "key": 2}),
    )
    trees = [[row[0] for row in document.rows] for document in found.documents]
    assert trees == [sorted([by_n, key]), *[[by_n]] * 3, [key]]
    listed = [(failure.tree, failure.doc_id) for _, failure in found.failures]
    assert listed == [*[(key, "bad")] * 3, (by_n, "other")]
    assert all("bad key" in failure.message for _, failure in found.failures)


@pytest.mark.slow
def test_a_document_that_breaks_the_limits_is_listed_for_all_trees():
    design = parse_design(
        {
            "views": {
                "a": {"map": "d => { if (d.n) for (;;); emit(1) }"},
                "b": {"map": "d => emit(2)"},
            }
        },
        "d",
    )
    mapper = IndexMapper(design, UUID)
    mapper._mapper._time_limit_s = 0.3
    found = mapped(mapper, put(b"x", {}), put(b"y", {"n": 1}), put(b"z", {}))
    mapper.close()
    assert [len(document.rows) for document in found.documents] == [2, 0, 2]
    assert [(failure.tree, failure.doc_id) for _, failure in found.failures] == [
        (0, "y"),
        (1, "y"),
    ]


def test_options_of_the_design_document():
    views = {"a": {"map": "d => emit([d._id, d._local_seq, d._rev])"}}
    options = {"include_design": True, "local_seq": True}
    mapper = IndexMapper(parse_design({"views": views, "options": options}, "d"), UUID)
    found = mapped(mapper, put(b"_design/d", {}), put(b"_local/d", {}))
    mapper.close()
    ((_, doc_id, ((_, _, key, _),)),) = found.documents
    assert doc_id == b"_design/d"
    assert json.loads(key) == ["_design/d", 7, Revisions(UUID).of(doc_id, LINEAGE, 4)]


def test_reducers_run_own_functions_where_the_maps_run(mapper):
    _, key = trees_of(mapper)
    design = mapper._design
    keys = [row_key(encode_raw_key(n), b"x") for n in range(3)]

    class Rows:
        def __init__(self):
            self.keys = keys
            self.values = [row_value([(b"%d" % n, b"%d" % n)]) for n in range(3)]

    number = design.views[2].number
    reducer = mapper.reducers()[key]
    (partial,) = reducer.reduce([Rows()])
    assert reducer.finalize(number, partial) == 3
    assert reducer.finalize(number, reducer.merge(number, [partial] * 2)) == 6


def test_uncompilable_and_unregistered_functions_are_refused():
    for language, source in (("javascript", "function ("), ("python", "registered:nobody")):
        design = parse_design({"language": language, "views": {"a": {"map": source}}}, "d")
        with pytest.raises(UsageError):
            IndexMapper(design, UUID)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text("ab\0", max_size=2), inner)
    ),
    max_leaves=4,
)


@settings(max_examples=budget(30))
@given(batch=st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=9) | VALUES.map(
    lambda value: json.dumps({"key": value, "n": [value]}).encode())), max_size=8))  # fmt: skip
def test_both_languages_give_equal_rows_for_any_values(both, batch):
    frames = [mutation(1, key, value, 7, 4, 1, 0, 0, 0) for key, value in batch]
    answers = []
    for mapper in both:
        found = mapper.map(Changes(frames, [LINEAGE] * len(frames)))
        trees = trees_of(mapper)
        answers.append([
            (*document[:2], sorted((trees.index(row[0]), *row[1:]) for row in document.rows))
            for document in found.documents
        ])  # fmt: skip
        assert found.failures == []
    assert answers[0] == answers[1]


@pytest.fixture(scope="module")
def both():
    mappers = [IndexMapper(design_of(language), UUID) for language in ("javascript", "python")]
    yield mappers
    for mapper in mappers:
        mapper.close()


def test_an_interrupted_batch_is_mapped_again_after_resume():
    loops = "function (d) { if (d.loops) for (;;); emit(d._id); }"
    mapper = IndexMapper(parse_design({"views": {"v": {"map": loops}}}, "d"), UUID)
    raised = []

    def run():
        with pytest.raises(UnavailableError) as found:
            mapped(mapper, put(b"a", {"loops": 1}))
        raised.append(found.value.code)

    assert mapper.busy_s == 0
    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: mapper.busy_s > 0.05)
    mapper.stop()
    thread.join(30)
    assert raised == ["stopping"]
    assert mapper.busy_s == 0
    with pytest.raises(UnavailableError):
        mapped(mapper, put(b"a", {}))
    mapper.resume()
    mapper.resume()
    (document,) = mapped(mapper, put(b"a", {})).documents
    assert len(document.rows) == 1
    mapper.close()


def test_a_stop_during_resume_is_not_lost(monkeypatch):
    design = parse_design({"views": {"v": {"map": "function (d) { emit(1); }"}}}, "d")
    mapper = IndexMapper(design, UUID)
    mapper.stop()
    open_functions = index_mapping.open_functions

    def stopped_meanwhile(functions):
        mapper.stop()
        return open_functions(functions)

    with monkeypatch.context() as patch:
        patch.setattr(index_mapping, "open_functions", stopped_meanwhile)
        with pytest.raises(UnavailableError, match="stopped"):
            mapper.resume()
    mapper.resume()
    assert mapper.map(Changes([], [])).documents == []
    mapper.close()
