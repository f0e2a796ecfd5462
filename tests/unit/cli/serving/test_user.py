"""Users by command, on a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.node.embedded import EmbeddedNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(tmp_path / "d", buckets=["b:4"]) as node:
        yield node


def test_users_are_added_listed_given_a_password_and_removed(
    node: EmbeddedNode, call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(*words: str, **options: Any) -> Any:
        return call("user", *words, "--connect", str(node.kv), **options)

    assert run("add", "root", "--role", "admin", stdin=b"secret-1\n").code == 0
    monkeypatch.setenv("MILLSTREAM_USER", "root")
    monkeypatch.setenv("MILLSTREAM_PASSWORD", "secret-1")
    file = tmp_path / "password"
    file.write_text("ann-password-1\n")
    given = ("--new-password-file", str(file))
    assert run("add", "ann", "--role", "read:b", "--role", "write:b", *given).code == 0
    again = run("add", "ann", *given)
    assert (again.code, again.err.count("\n")) == (2, 1)
    lines = ["ann read:b write:b", "root admin"]
    assert run("list").out.decode().splitlines() == lines
    assert run("password", "root", stdin=b"secret-2\n").code == 0
    assert run("list").code == 1
    monkeypatch.setenv("MILLSTREAM_PASSWORD", "secret-2")
    assert run("list").out.decode().splitlines() == lines
    assert run("password", "bob", *given).code == 1
    assert run("password", "ann", stdin=b"").code == 2
    assert run("remove", "ann").code == 0
    assert run("remove", "ann").code == 1
    assert run("list").out.decode().splitlines() == lines[1:]
