import asyncio
from typing import NamedTuple

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.views.aio.indexing.index_check import UNCLOSED_OPENS_MAX, note_open
from millstream.views.aio.serving import hosted_index
from millstream.views.aio.serving.hosted_index import HostedIndex
from millstream.views.core.collation import encode_key
from millstream.views.core.design.design_documents import parse_design
from millstream.views.core.rows import row_key, row_value

DOCUMENT = {
    "views": {
        "sum": {"map": "function (doc) { emit(doc.k, 1); }", "reduce": "_sum"},
        "own": {
            "map": "function (doc) { emit(doc.k, 1); }",
            "reduce": "function (keys, values) { return values.length; }",
        },
        "raw": {"map": "function (doc) { emit(1); }", "options": {"collation": "raw"}},
    }
}
DESIGN = parse_design(DOCUMENT, "d")


@pytest.fixture
def hosted(tmp_path):
    made = HostedIndex(DESIGN, "00", tmp_path / "index")
    yield made
    made.mapper.close()
    made.close()


def test_a_view_is_asked_with_its_order_and_reduce(hosted):
    by_name = {view.name: hosted.asked_view(view) for view in DESIGN.views}
    assert by_name["sum"].tree == by_name["own"].tree != by_name["raw"].tree
    assert by_name["sum"].encode is not by_name["raw"].encode
    assert by_name["own"].is_own_reduce
    assert not by_name["sum"].is_own_reduce
    assert by_name["raw"].reduce == -1
    own = by_name["own"]
    assert DESIGN.trees[own.tree].reduces[own.emits] == "_count"


def test_a_custom_reduce_of_a_query_runs_in_its_own_process(hosted):
    view = next(view for view in DESIGN.views if view.name == "own")
    asked = hosted.asked_view(view)
    leaf = RowsOfALeaf([row_key(encode_key("a"), b"id")], [row_value([(b'"a"', b"1")])])
    partial = asked.reducer.reduce([leaf])[0]
    assert asked.reducer.finalize(asked.reduce, partial) in (1, b"1")
    assert hosted._asking is not None
    assert hosted._asking is not hosted.mapper._mapper


def test_no_process_starts_for_a_query_after_close(tmp_path):
    hosted = HostedIndex(DESIGN, "00", tmp_path / "index")
    view = next(view for view in DESIGN.views if view.name == "own")
    asked = hosted.asked_view(view)
    hosted.mapper.close()
    hosted.close()
    leaf = RowsOfALeaf([row_key(encode_key("a"), b"id")], [row_value([(b'"a"', b"1")])])
    with pytest.raises(UnavailableError, match="closed"):
        asked.reducer.reduce([leaf])
    assert hosted._asking is None


@pytest.mark.parametrize(("limit", "is_kept"), [("true", False), ("false", True), ("log", True)])
def test_reduce_results_that_do_not_shrink_follow_the_setting(tmp_path, caplog, limit, is_kept):
    reduce = "function (keys, values) { return 'x'.repeat(6000); }"
    design = parse_design({"views": {"v": {"map": "doc => emit(1)", "reduce": reduce}}}, "d")
    hosted = HostedIndex(design, "00", tmp_path / "index", limit)
    leaf = RowsOfALeaf([row_key(encode_key(1), b"id")], [row_value([(b"1", b"1")])])
    asked = hosted.asked_view(design.views[0])
    for reducer in (asked.reducer, *hosted.mapper.reducers(limit, hosted._tell_overflow)):
        shown = reducer.finalize(asked.reduce, reducer.reduce([leaf])[0])
        assert (shown == "x" * 6000) is is_kept
    hosted.mapper.close()
    hosted.close()
    assert caplog.text.count("must shrink") == (limit == "log")


class RowsOfALeaf(NamedTuple):
    keys: list
    values: list


async def test_an_index_stays_open_until_the_last_reader_ends(hosted):
    assert not hosted.is_used
    await hosted.until_unused()
    with hosted.used():
        with hosted.used():
            assert hosted.is_used
        waiting = asyncio.ensure_future(hosted.until_unused())
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


def test_a_definition_that_does_not_compile_leaves_no_files(tmp_path):
    bad = parse_design({"views": {"v": {"map": "function ("}}}, "bad")
    with pytest.raises(UsageError):
        HostedIndex(bad, "00", tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_another_order_of_rows_is_built_anew(tmp_path, monkeypatch):
    first = HostedIndex(DESIGN, "00", tmp_path / "index")
    first.mapper.close()
    first.close()
    assert not first.rebuilt_because
    monkeypatch.setattr(hosted_index, "COLLATION_VERSION", "another")
    second = HostedIndex(DESIGN, "00", tmp_path / "index")
    second.mapper.close()
    second.close()
    assert "collation" in second.rebuilt_because


def test_only_the_last_damaged_index_is_kept(hosted, tmp_path):
    aside = tmp_path / "index.damaged"
    aside.mkdir()
    (aside / "older").write_text("")
    hosted.set_aside()
    assert not (aside / "older").exists()
    assert aside.is_dir()
    assert not (tmp_path / "index").exists()
    hosted._open()


def test_files_that_crashed_the_process_are_checked_and_set_aside(tmp_path):
    first = HostedIndex(DESIGN, "00", tmp_path / "index")
    first.mapper.close()
    first._store.close()  # not `close`: as if the process had ended
    for _ in range(UNCLOSED_OPENS_MAX - 1):
        note_open(tmp_path / "index")
    (tmp_path / "index" / "1" / "data.mdb").write_bytes(b"rubbish" * 2000)
    second = HostedIndex(DESIGN, "00", tmp_path / "index")
    second.mapper.close()
    second.close()
    assert "remove that directory" in second.rebuilt_because
    assert (tmp_path / "index.damaged").is_dir()
    assert [each.name for each in (tmp_path / "index").iterdir()] == ["1"]
