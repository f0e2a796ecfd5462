"""The act without a node and without Spark; the whole of it runs in tests/e2e."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.demo import crash
from millstream.demo.crash import _Act, errors_to


class Node:
    """Keeps what was written before its only flush."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self.flushed: dict[str, bytes] = {}
        self.ends: list[str] = []

    def kill(self) -> None:
        self.documents = dict(self.flushed)
        self.ends.append("killed")

    def stop(self) -> None:
        self.ends.append("stopped")


class Act(_Act):
    """`_Act` over a dictionary; the table follows, rolled back or not."""

    def __init__(self, directory: Path, node: Node, *, repairs: bool) -> None:
        replay: Any = [None] * 9
        super().__init__(directory, None, {"hosts": "h:1"}, replay)
        self.node, self.repairs, self.rows = node, repairs, dict[str, bytes]()

    def _write(self, part: int, *, is_durable: bool = False) -> None:
        self.node.documents |= {"always": b"%d" % part, f"k{part}": b""}
        if is_durable:
            self.node.flushed = dict(self.node.documents)

    def _follow(self) -> None:
        self.rows = {**({} if self.repairs else self.rows), **self.node.documents}

    def _in_table(self) -> dict[str, bytes]:
        return dict(self.rows)

    def _in_bucket(self, keys: object) -> dict[str, bytes]:
        return dict(self.node.documents)


@pytest.mark.parametrize("repairs", [True, False])
def test_what_was_lost_and_what_differs_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repairs: bool
) -> None:
    node = Node()
    monkeypatch.setattr(crash, "start_node", lambda *_, address: (node, address))
    act: Any = Act(tmp_path, node, repairs=repairs)
    done = act.play(node)
    assert done.lost == 2
    assert [check.is_right for check in done.checks] == [True, repairs]
    assert node.ends == ["killed", "stopped"]


def test_errors_of_what_is_started_go_to_a_file(tmp_path: Path) -> None:
    before = os.fstat(2)
    with errors_to(tmp_path / "log"):
        words = [sys.executable, "-c", "import sys; sys.stderr.write('from a child')"]
        subprocess.run(words, check=True)
    assert (tmp_path / "log").read_text() == "from a child"
    assert os.path.samestat(os.fstat(2), before)
