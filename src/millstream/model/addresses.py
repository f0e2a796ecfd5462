"""Addresses as people write them.

Invariants:
1. Nothing is looked up: a host name stays a name.
"""

from __future__ import annotations

from millstream.errors import UsageError

__all__ = ["parse_address"]


def parse_address(text: str, *, default_port: int) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[V6]:PORT` or `HOST`.

    Raises:
        UsageError: `bad_address`.

    >>> parse_address("[::1]:7", default_port=11210), parse_address("db", default_port=11210)
    (('::1', 7), ('db', 11210))
    """
    text = text.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is no address; write HOST:PORT", code="bad_address")
    return host, int(port)
