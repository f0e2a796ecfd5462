"""Figures over the kv port, from a false node."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.client import statistics
from millstream.client.connection import Connection
from millstream.client.statistics import statistics_of
from millstream.errors import AccessError, UnavailableError
from millstream.wire.mcbp import Opcode, Status, response


@pytest.fixture
def connection(node: Any) -> Any:
    host, port = node.address.split(":")
    with Connection(host, int(port)) as connection:
        yield connection


def answering(node: Any, *pairs: tuple[bytes, bytes], status: int = Status.SUCCESS) -> None:
    node.handlers[Opcode.STAT] = lambda packet: b"".join(
        response(Opcode.STAT, status, packet.opaque, key=key, value=value)
        for key, value in (*pairs, (b"", b""))
    )


def test_figures_come_by_name_and_the_connection_goes_on(node: Any, connection: Any) -> None:
    answering(node, (b"a", b"1"), (b"b", b"x"))
    for _ in range(2):
        assert statistics_of(connection) == {"a": "1", "b": "x"}


def test_who_may_not_see_them_is_told_to_log_in(node: Any, connection: Any) -> None:
    answering(node, status=Status.EACCESS)
    with pytest.raises(AccessError, match="--user"):
        statistics_of(connection)


def test_figures_that_do_not_end_are_an_error(
    node: Any, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "STATISTICS_MAX", 2)
    answering(node, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    with pytest.raises(UnavailableError, match="do not end"):
        statistics_of(connection)
    assert connection.is_closed
