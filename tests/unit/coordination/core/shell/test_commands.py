"""`core.shell.commands`: help, completion, and what the shell knows of commands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import FunctionType

import pytest

from millstream.coordination.core.namespace.commands.command import Command
from millstream.coordination.core.namespace.commands.tree import TREE
from millstream.coordination.core.namespace.machine import QUEUED
from millstream.coordination.core.resp.common_commands import CONNECTION_COMMANDS
from millstream.coordination.core.shell.commands import (
    COMMANDS,
    completions,
    has_secret,
    help_lines,
    is_waiting,
    root_of,
    without_prefixes,
)

NAMED = {**QUEUED, b"TREE": TREE}


def names_below(path: str) -> list[str]:
    return {"/": ["app", "apple", "web"], "/app": ["queue", "quay", "x"]}.get(path, [])


def test_every_command_of_a_node_is_known() -> None:
    known = {name.encode() for name in COMMANDS}
    assert (NAMED.keys() | CONNECTION_COMMANDS.keys()) - known == set()
    assert known - NAMED.keys() - CONNECTION_COMMANDS.keys() == {b"HELP", b"EXIT"}


def words_in(usages: Iterable[str]) -> set[str]:
    return {word for usage in usages for word in re.findall(r"\b[A-Z][A-Z_-]+\b", usage)}


def usages_of(command: Command) -> list[str]:
    """Return how the sub-commands are written that a command has in a table, if it has one."""
    cells = command.__closure__ if isinstance(command, FunctionType) else None
    tables = [cell.cell_contents for cell in cells or () if isinstance(cell.cell_contents, dict)]
    return [usage for table in tables for usage, _ in table.values()]


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_key_word_of_a_command_is_known(name: bytes) -> None:
    usage, command = NAMED[name]
    usages = [*usages_of(command), *usage.split(", or ")]
    for each in usages:
        _, second, *_ = [*each.split(" "), ""]
        ways = [way for way, _ in COMMANDS[name.decode()]]
        named = [way for way in ways if second in words_in([way])]
        assert words_in([each]) <= words_in(named or ways), each


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cr", ["CREATE", "CREATENAMESPACE"]),
        ("CREATE ", ["BINARY", "COUNTER", "LIST", "QUEUE", "SET"]),
        ("CREATE BINARY EPHEMERAL S", ["SEQUENTIAL"]),
        ("CREATE BINARY U", []),
        ("CREATE COUNTER u", ["UNSIGNED"]),
        ("LOCK RE", ["READ", "RELEASE"]),
        ("LOCK READ /app/x N", ["NOWAIT"]),
        ("LIST /a", ["/app", "/apple"]),
        ("LIST /app/x ", ["COUNT", "STALEREAD", "TOKEN"]),
        ("LIST AP", ["APPEND"]),
        ("CSN 7 GET /app/qu", ["/app/quay", "/app/queue"]),
        ("GET /app/x CAS ST", ["STALEREAD"]),
        ("HELP SEM", ["SEMAPHORE"]),
        ("BARRIER W", ["WAIT"]),
        ("nosuch ", []),
        ("GET /none/", []),
    ],
)
def test_words_are_completed(line: str, found: list[str]) -> None:
    assert completions(line, names_below) == found


def test_help_says_how_a_command_is_written() -> None:
    assert len(help_lines([])) == len(COMMANDS) + 1
    assert help_lines(["barrier", "wait"]) == [
        "BARRIER WAIT|CANCEL|DESTROY path", "    wait for the others; wait no more; end it",
    ]  # fmt: skip
    assert help_lines(["move"])[0] == "MOVE source target [FORCE_MOVE]"
    assert help_lines(["nosuch"]) == ["there is no command NOSUCH; HELP lists all"]


def test_prefixes_and_namespaces() -> None:
    assert without_prefixes(b"csn 7 CTS 1 PUT /a/b x".split()) == [b"PUT", b"/a/b", b"x"]
    assert without_prefixes(b"force CTS 1 PUT /a/b x".split()) == [b"PUT", b"/a/b", b"x"]
    assert without_prefixes(b"CSN 1".split()) == [b"CSN", b"1"]
    assert without_prefixes([b"FORCE"]) == [b"FORCE"]
    assert without_prefixes([]) == []
    assert completions("FORCE CSN 4 LOO", lambda _: ()) == ["LOOKUP"]
    assert root_of(b"LOCK READ /a/b /c".split()) == b"/a"
    assert root_of(b"LIST /".split()) == b""
    assert root_of(b"PING".split()) == b""


@pytest.mark.parametrize(
    ("line", "is_so"),
    [
        (b"LOCK /a", True), (b"lock read group /a /b", True), (b"LOCK RELEASE /a", False),
        (b"SEMAPHORE DESTROY /a", True), (b"BARRIER WAIT /a", True), (b"BARRIER INIT 2 /a", False),
        (b"ELECT CAMPAIGN /a", True), (b"QUEUE WAIT /a", True), (b"CSN 3 LOCK /a", False),
        (b"PING", False),
    ],
)  # fmt: skip
def test_which_events_may_wait(line: bytes, is_so: bool) -> None:
    assert is_waiting(line.split()) is is_so


def test_lines_with_passwords_are_known() -> None:
    assert has_secret("auth ada secret")
    assert has_secret("HELLO 3 AUTH ada secret")
    assert has_secret("ADMIN USER SET ada PASSWORD x")
    assert has_secret("SESSION RESUME client secret")
    assert not has_secret("GET /app/password")
