"""Design documents from files, modules of functions."""

from __future__ import annotations

import json
import sys

import pytest

from millstream.errors import UsageError
from millstream.pipelines.bucket_changes import Endpoint
from millstream.pipelines.view_setup import check_functions, find_design, load_modules
from millstream.views.core.design import parse_design

NOWHERE = Endpoint("127.0.0.1:1")
VIEWS = {"views": {"v": {"map": "d => emit(1)"}}}


def test_a_file_needs_no_node(tmp_path):
    named = tmp_path / "x.json"
    named.write_text(json.dumps({"_id": "_design/n", **VIEWS}))
    assert find_design(NOWHERE, "b", str(named)).name == "n"
    unnamed = tmp_path / "stem.json"
    unnamed.write_text(json.dumps(VIEWS))
    assert find_design(NOWHERE, "b", str(unnamed)).name == "stem"


@pytest.mark.parametrize("content", [None, "{", "[]", '{"views":{}}'])
def test_a_bad_file_is_refused(tmp_path, content):
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError):
        find_design(NOWHERE, "b", str(path))


@pytest.mark.parametrize(
    "members",
    [
        {"options": {"local_seq": True}},
        {"options": {"include_design": True}},
        {"views": {"v": {"map": "m", "reduce": "_top_3"}}},
        {"views": {"v": {"map": "m", "options": {"collation": "raw"}}}},
    ],
)
def test_what_only_indexes_can_do_is_refused(tmp_path, members):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**VIEWS, **members}))
    with pytest.raises(UsageError) as caught:
        find_design(NOWHERE, "b", str(path))
    assert caught.value.code == "not_in_pipelines"


def test_functions_are_checked_before_spark_starts():
    check_functions(parse_design(VIEWS, "d"))
    with pytest.raises(UsageError) as caught:
        check_functions(parse_design({"views": {"v": {"map": "function ("}}}, "d"))
    assert caught.value.code == "compilation_error"


def test_a_module_of_the_working_directory_is_shipped(tmp_path, monkeypatch):
    (tmp_path / "my_test_views.py").write_text("loaded = True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_modules(("my_test_views",)) == [tmp_path / "my_test_views.py"]
    assert load_modules(("millstream.demo.views",)) == []
    sys.modules.pop("my_test_views")


def test_a_missing_module_is_refused():
    with pytest.raises(UsageError) as caught:
        load_modules(("no_such_module_of_views",))
    assert caught.value.code == "bad_module"
