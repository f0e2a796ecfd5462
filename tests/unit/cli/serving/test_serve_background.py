"""Nodes in the background, with programs that stand for them."""

from __future__ import annotations

import doctest
import os
import sys
from pathlib import Path

import pytest

from millstream.cli.serving import serve_background
from millstream.cli.serving.serve_background import start
from millstream.errors import UnavailableError, UsageError
from support.node.node_process import is_gone
from support.node.waiting import until

READY = 'print(\'{"event":"ready","pid":%d,"kv":"h:1"}\' % os.getpid(), flush=True)'
STAY = "import signal; signal.pause()"


def program(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(["import os, sys", *lines])]


def test_examples() -> None:
    assert doctest.testmod(serve_background).failed == 0


def test_a_node_that_is_ready_goes_on_in_a_session_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    said = "print('a line', file=sys.stderr, flush=True)"
    words = "print(sys.argv[1:], file=sys.stderr, flush=True)"
    ready = start(["--kv=h:1"], log, command=program(said, words, READY, STAY))
    pid = ready["pid"]
    try:
        assert ready == {"event": "ready", "pid": pid, "kv": "h:1", "log": str(log)}
        assert log.read_text() == "before\na line\n['--kv=h:1']\n"
        assert os.getsid(pid) == pid
        assert not is_gone(pid)
    finally:
        os.kill(pid, 15)
        until(lambda: is_gone(pid))


@pytest.mark.parametrize(
    ("lines", "kind", "why"),
    [
        (("sys.exit('millstream: the directory is in use')",), UnavailableError, "is in use"),
        (
            ("print('millstream: no such option', file=sys.stderr)", "sys.exit(2)"),
            UsageError, "no such option",
        ),
        (("sys.exit(7)",), UnavailableError, "exit code 7"),
    ],
)  # fmt: skip
def test_a_node_that_does_not_start_says_why(
    tmp_path: Path, lines: tuple[str, ...], kind: type[Exception], why: str
) -> None:
    log = tmp_path / "log"
    log.write_text("millstream: an older fault\n")
    with pytest.raises(kind, match=why) as failed:
        start([], log, command=program(*lines))
    assert str(log) in str(failed.value)


def test_a_node_that_is_not_ready_in_time_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_background, "READY_S_MAX", 0.0)
    pid_file = tmp_path / "pid"
    lines = f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))", STAY
    with pytest.raises(UnavailableError, match=r"pid \d+\) is not ready") as failed:
        start([], tmp_path / "log", command=program(*lines))
    assert is_gone(int(str(failed.value).partition("pid ")[2].partition(")")[0]))


def test_a_log_that_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--log-file"):
        start([], tmp_path / "none" / "log", command=program())
