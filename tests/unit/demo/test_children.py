"""Processes of the demonstration, with a small command in place of a node."""

from __future__ import annotations

import pytest

from millstream.demo.children import Child
from millstream.errors import UnavailableError


def test_lines_and_exit_code(tmp_path):
    with Child(tmp_path, "helper", ["version", "--json"]) as child:
        (line,) = child.wait_for_lines(1, 30)
        assert line["millstream"] or line["version"]
        child._process.wait(30)  # it ends by itself: a signal now would race with that
    assert child.stop() == 0


def test_a_child_that_ends_is_told_with_the_end_of_its_log(tmp_path):
    with Child(tmp_path, "helper", ["get"]) as child:
        with pytest.raises(UnavailableError, match="ended with code 2") as caught:
            child.wait_for_lines(1, 30)
        assert "helper.log" in str(caught.value)


def test_half_a_line_is_not_a_line(tmp_path):
    with Child(tmp_path, "helper", ["version"]) as child:
        child.out.write_text('{"a":1}\n{"b":')
        assert child.lines() == [{"a": 1}]
