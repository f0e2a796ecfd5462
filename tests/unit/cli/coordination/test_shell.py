"""`millstream shell`: wrong use; all else against a node (tests/e2e/test_shell.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_a_node_that_is_not_there_is_said(call: Callable[..., Any]) -> None:
    outcome = call("shell", "--coord", "127.0.0.1:1", stdin=b"PING\n")
    assert outcome.code == 1
    assert "coordination at 127.0.0.1:1 is not reached" in outcome.err


def test_a_wrong_address_is_wrong_use(call: Callable[..., Any]) -> None:
    assert call("shell", "--coord", "127.0.0.1:x").code == 2
