"""The work directory of the demonstration; the whole of it runs in tests/e2e."""

from __future__ import annotations

import pytest

from millstream.demo.run import _clean, _has_reached, _prepare
from millstream.errors import UsageError


def test_what_an_interrupted_run_left_is_removed(tmp_path):
    _prepare(tmp_path / "new")
    (tmp_path / "new" / "node").mkdir()
    _prepare(tmp_path / "new")
    assert not (tmp_path / "new" / "node").exists()
    _clean(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_kept_run_is_not_touched(tmp_path):
    (tmp_path / "node").mkdir()
    with pytest.raises(UsageError) as caught:
        _prepare(tmp_path)
    assert caught.value.code == "not_empty"
    assert (tmp_path / "node").exists()


class Views:
    bucket = "b-views"

    def __init__(self, header):
        self.header = header

    def get(self, key):
        return type("Found", (), {"value": self.header})


@pytest.mark.parametrize(
    ("offset", "is_reached"),
    [
        (None, False), ({"p": {}}, False), ({"p": {"0": ["u", 4], "1": ["u", 1]}}, False),
        ({"p": {"0": ["u", 5]}}, True), ({"p": {"0": ["u", 6], "1": ["u", 0]}}, True),
    ],
)  # fmt: skip
def test_a_header_has_reached_positions(offset, is_reached):
    assert _has_reached(Views({"offset": offset}), "d", {0: 5, 1: 0}) is is_reached
