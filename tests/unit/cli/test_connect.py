import inspect
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from millstream.cli import connect
from millstream.cli.connect import (
    LoginOptions,
    NodeOptions,
    at_node,
    awaited,
    key_of,
    tls_of,
    who_of,
)
from millstream.client.dump_file import DumpWriter
from millstream.client.dump_lines import HeaderLine
from millstream.errors import UnavailableError, UsageError


def test_commands_share_the_options_that_name_a_node() -> None:
    given: list[Any] = []

    @at_node
    def command(name: str, *, at: NodeOptions, json: bool = False) -> None:
        """Say something."""
        given.append((name, at, json))

    names = list(inspect.signature(command).parameters)
    assert names == ["name", *NodeOptions._fields, "json"]
    assert command.__doc__ == "Say something."
    app = typer.Typer()
    app.command()(command)
    words = ["x", "--connect", "a:1", "--user", "u", "--password-file", "p", "--tls-ca", "c"]
    assert CliRunner().invoke(app, [*words, "--json"]).exit_code == 0
    environment = {"MILLSTREAM_CONNECT": "b:2", "MILLSTREAM_USER": "w"}
    assert CliRunner().invoke(app, ["y"], env=environment).exit_code == 0
    assert given == [
        ("x", ("a:1", "u", Path("p"), Path("c")), True), ("y", ("b:2", "w", None, None), False),
    ]  # fmt: skip


def test_a_command_that_is_told_elsewhere_which_node_takes_only_who_logs_in() -> None:
    given: list[Any] = []

    @at_node
    def command(*, at: LoginOptions) -> None:
        given.append(at)

    assert tuple(inspect.signature(command).parameters) == LoginOptions._fields
    assert NodeOptions._fields == ("address", *LoginOptions._fields)
    app = typer.Typer()
    app.command()(command)
    assert CliRunner().invoke(app, ["--user", "u"]).exit_code == 0
    assert CliRunner().invoke(app, ["--connect", "a:1"]).exit_code == 2
    assert given == [("u", None, None)]


def test_without_user_nobody_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_PASSWORD", "secret")
    assert who_of(None, None) == (None, "")


def test_password_file_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_PASSWORD", "from environment")
    path = tmp_path / "password"
    path.write_text("from file \r\nsecond line\n")
    assert who_of("ann", path) == ("ann", "from file ")
    assert who_of("ann", None) == ("ann", "from environment")
    assert "environment" not in repr(who_of("ann", None))


def test_missing_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLSTREAM_PASSWORD", raising=False)
    with pytest.raises(UsageError, match="MILLSTREAM_PASSWORD"):
        who_of("ann", None)
    with pytest.raises(UsageError, match="needs --user"):
        who_of(None, tmp_path)
    with pytest.raises(UsageError, match="cannot read the password file"):
        who_of("ann", tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="is empty"):
        who_of("ann", tmp_path / "empty")


def test_certificates(tmp_path: Path) -> None:
    assert tls_of(None) is None
    (tmp_path / "ca").write_text("nonsense")
    with pytest.raises(UsageError, match="is no certificate authority"):
        tls_of(tmp_path / "ca")
    with pytest.raises(UsageError, match="is no certificate authority"):
        tls_of(tmp_path / "none")


def test_keys() -> None:
    assert (key_of("ä"), key_of("\\xff00")) == ("ä".encode(), b"\xff\x00")
    with pytest.raises(UsageError, match="hex digits"):
        key_of("\\xf")


ASKING = [
    "status", "top", "bucket list", "bucket create b", "user list", "get b k", "put b k {}",
    "put b _design/a {}", "delete b k", "load b FILE", "tail b", "keys b", "query b {}",
    "view b a/b", "dump b NEW", "restore b DUMP", "bench b", "cluster promote b", "cluster status",
    "cluster init", "coord watch /a", "coord get /a", "shell SCRIPT",
]  # fmt: skip
"""Commands that ask a node; files that they read are there."""


class PausesOnly:
    """A clock on which only pauses take time: a slow machine does not end the wait."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("words", ASKING)
def test_every_command_waits_for_a_node_that_is_starting(
    call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
) -> None:
    monkeypatch.setattr(connect, "STARTING_PAUSE_S", 5.0)
    monkeypatch.setattr(connect, "time", PausesOnly())
    (tmp_path / "FILE.jsonl").write_text("{}\n")
    (tmp_path / "SCRIPT").write_text("VDS /\n")
    with DumpWriter(tmp_path / "DUMP", overwrites=False) as writer:
        writer.write(HeaderLine("millstream-dump", 1, "b", "aa", 4, ""))
        writer.finish()
    names = {"FILE": "FILE.jsonl", "NEW": "NEW", "DUMP": "DUMP", "SCRIPT": "SCRIPT"}
    given = [str(tmp_path / names[word]) if word in names else word for word in words.split()]
    outcome = call(*given, "--connect", "127.0.0.1:1")
    assert outcome.code == 1
    assert outcome.err.count("waiting for a node at 127.0.0.1:1\n") == 1
    assert outcome.err.count("\n") == 2


def test_a_node_that_is_starting_is_waited_for_and_that_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connect, "STARTING_PAUSE_S", 0.0)
    refused = UnavailableError("nobody listens", code="unreachable")
    refused.__cause__ = ConnectionRefusedError()
    answers: list[Any] = [refused, refused, "made"]

    def attempt() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    assert awaited("h:1", attempt) == "made"
    assert capsys.readouterr().err.count("waiting for a node at h:1") == 1
    answers = [UnavailableError("another fault")]
    with pytest.raises(UnavailableError, match="another"):
        awaited("h:1", attempt)
