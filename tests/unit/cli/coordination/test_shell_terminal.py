"""`cli.coordination.shell_terminal`: completion; the rest in tests/e2e/test_shell.py, at a
prompt."""

from __future__ import annotations

import readline
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.coordination.shell_terminal import Terminal, history_file
from millstream.errors import UnavailableError


class FalseShell:
    def __init__(self) -> None:
        self.asking = self

    def names_below(self, path: str) -> list[str]:
        if path == "/lost":
            raise UnavailableError("gone", code="lost")
        return ["one", "other"]


def completed(monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    monkeypatch.setattr(readline, "get_line_buffer", lambda: line + " behind")
    monkeypatch.setattr(readline, "get_endidx", lambda: len(line))
    shell: Any = FalseShell()
    terminal = Terminal(shell)
    found = [terminal._complete("", number) for number in range(4)]
    return [each for each in found if each]


def test_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(monkeypatch, "LOOK") == ["LOOKUP "]
    assert completed(monkeypatch, "GET /a/o") == ["/a/one", "/a/other"]
    assert completed(monkeypatch, "GET /a/on") == ["/a/one"]
    assert completed(monkeypatch, "GET /lost/o") == []


def test_where_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert history_file() == Path("/state/millstream/shell_history")
