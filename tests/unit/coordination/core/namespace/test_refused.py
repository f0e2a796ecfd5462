"""Errors are answers."""

from millstream.coordination.core.namespace.refused import Refused


def test_it_is_the_value_that_a_client_gets() -> None:
    assert Refused("LOCKED", "/a").value == b"-LOCKED /a"
    assert Refused("BUSY").value == b"-BUSY"
