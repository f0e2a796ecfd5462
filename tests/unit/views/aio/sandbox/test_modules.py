"""Modules of the operator."""

from __future__ import annotations

import sys

import pytest

from millstream.errors import UsageError
from millstream.views.aio.sandbox.modules import load_modules


def test_modules_of_the_working_directory_are_found(tmp_path, monkeypatch):
    (tmp_path / "my_index_functions.py").write_text("loaded = True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (module,) = load_modules(["my_index_functions"])
    assert module.loaded
    sys.modules.pop("my_index_functions")


@pytest.mark.parametrize("source", [None, "1 / 0", "not python"])
def test_a_module_that_cannot_be_imported_is_a_configuration_error(tmp_path, monkeypatch, source):
    if source is not None:
        (tmp_path / "my_broken_functions.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UsageError, match="my_broken_functions") as caught:
        load_modules(["my_broken_functions"])
    assert caught.value.code == "bad_module"
