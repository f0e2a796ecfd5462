"""What the command refuses; lines are in tests/unit/upr/core, the rest in tests/e2e."""

from typing import Any


def test_unreachable_node(call: Any) -> None:
    code, _, err = call("tail", "b", "--connect", "127.0.0.1:1")
    assert code == 1
    assert "127.0.0.1:1" in err
