"""The child's own program: what it does with text, and that it needs nothing of this package."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from millstream.views.aio.sandbox import child as sandbox_child
from millstream.views.aio.sandbox.child import _ESCAPES, _error, _well_formed


def test_it_imports_only_the_standard_library_and_the_engine():
    tree = ast.parse(Path(sandbox_child.__file__).read_text())
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert names - set(sys.stdlib_module_names) == {"_quickjs"}


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (r'"\ud800"', "\ufffd"), (r'"\\ud800"', r"\ud800"), (r'"\\\ud800"', "\\\ufffd"),
        (r'"a\udfffb"', "a\ufffdb"),
    ],
)  # fmt: skip
def test_lone_surrogates_are_replaced_and_backslashes_kept(text, whole):
    assert json.loads(_ESCAPES.sub(_well_formed, text)) == whole


def test_an_error_is_one_short_line():
    kind, body = _error("parse", "first\nsecond" + "x" * 1000, 3)
    assert kind == b"E"
    assert json.loads(body) == {"kind": "parse", "message": "first", "at": 3}
