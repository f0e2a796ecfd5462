"""What the command sees of the line that ties it."""

from __future__ import annotations

import io
import sys

from millstream.demo import tethered


class PipeDouble(io.StringIO):
    def fileno(self) -> int:
        return 99


def test_the_command_is_tied_before_it_runs_and_sees_its_own_arguments(monkeypatch):
    calls = []
    monkeypatch.setattr(sys, "argv", ["tethered", "1234", "serve", "--data", "d"])
    monkeypatch.setattr(sys, "stdin", PipeDouble())
    monkeypatch.setattr(tethered, "die_with_parent", lambda *tie: calls.append(tie))
    monkeypatch.setattr(
        tethered.runpy, "run_module", lambda name, **_: calls.append((name, *sys.argv[1:]))
    )
    tethered.main()
    assert calls == [(1234, 99), ("millstream", "serve", "--data", "d")]
