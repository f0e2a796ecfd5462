"""What the command refuses; lines are in tests/unit/upr/core, the rest in tests/e2e."""

from typing import Any


def test_barrier_is_refused_clearly(call: Any) -> None:
    code, out, err = call("tail", "b", "--barrier")
    assert (code, out) == (2, b"")
    assert "--barrier" in err


def test_unreachable_node(call: Any) -> None:
    code, _, err = call("tail", "b", "--connect", "127.0.0.1:1")
    assert code == 1
    assert "127.0.0.1:1" in err
