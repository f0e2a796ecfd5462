"""Processes of the demonstration, with a small command in place of a node."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.demo.children import Child
from millstream.errors import UnavailableError


def test_lines_and_exit_code(tmp_path):
    with Child(tmp_path, "helper", ["version", "--json"]) as child:
        (line,) = child.wait_for_lines(1, 30)
        assert line["millstream"] or line["version"]
        child._process.wait(60)  # it ends by itself: a signal now would race with that
    assert child.stop() == 0


def test_a_child_that_ends_is_told_with_the_end_of_its_log(tmp_path):
    with Child(tmp_path, "helper", ["get"]) as child:
        with pytest.raises(UnavailableError, match="ended with code 2") as caught:
            child.wait_for_lines(1, 30)
        assert "helper.log" in str(caught.value)


def test_a_child_that_is_killed_is_gone_with_what_it_started(tmp_path):
    child = Child(tmp_path, "helper", ["version", "--json"])
    child.wait_for_lines(1, 30)
    child.kill()
    assert child._process.poll() is not None


def test_half_a_line_is_not_a_line(tmp_path):
    with Child(tmp_path, "helper", ["version"]) as child:
        child.out.write_text('{"a":1}\n{"b":')
        assert child.lines() == [{"a": 1}]


PARENT = """
import sys, time
from pathlib import Path
from millstream.demo.children import start_node
node, address = start_node(Path(sys.argv[1]), "b")
print(node._process.pid, flush=True)
time.sleep(600)
"""


def is_alive(process_id):
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"  # an orphan may have no one to reap it


def children_of(process_id):
    return [
        int(text)
        for path in Path(f"/proc/{process_id}/task").glob("*/children")
        for text in path.read_text().split()
    ]


def test_the_node_and_its_engine_end_with_a_parent_that_is_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE
    ) as parent:
        try:
            node = int(parent.stdout.readline())
            processes = [node, *children_of(node)]
            assert len(processes) == 2
            assert all(map(is_alive, processes))
        finally:
            parent.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 30
        while any(map(is_alive, processes)):
            assert time.monotonic() < deadline
            time.sleep(0.02)  # no child of ours: nobody tells of its end
