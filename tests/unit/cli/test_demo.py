"""`millstream demo`: its exit code; the demonstration itself runs in tests/e2e."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from millstream.demo import report, run
from millstream.demo.checks import Check, check_number
from millstream.demo.run import Outcome
from millstream.demo.truth import Truth


@pytest.mark.parametrize(("found", "code"), [(1, 0), (2, 1)])
def test_a_difference_is_a_failure(
    call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: int, code: int
) -> None:
    asked: dict[str, Any] = {}
    check: Check = check_number("documents", 1, found)

    def play(console: Any, work_dir: Path, **options: Any) -> Outcome:
        asked.update(options, work_dir=work_dir)
        return Outcome(Truth(), checks=[check])

    served: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda words, **_: served.append(words))
    monkeypatch.setattr(run, "run_demo", play)
    monkeypatch.setattr(report, "write_report", lambda *_, **__: tmp_path / "report.html")
    words = ["demo", "--flights", "7", "--workdir", str(tmp_path), "--keep", "--no-plots"]
    outcome = call(*words)
    assert outcome.code == code
    assert asked == {"flights": 7, "keep": True, "work_dir": tmp_path}
    assert [words[words.index("--data") + 1] for words in served] == [str(tmp_path / "node")]
    assert ("WRONG" in outcome.out.decode()) == bool(code)
