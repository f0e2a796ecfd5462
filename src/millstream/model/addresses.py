"""Addresses as people write them.

Invariants:
1. Nothing is looked up: a host name stays a name.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from millstream.errors import UsageError

__all__ = ["is_key_source", "is_loopback", "parse_address"]


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


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def is_key_source(text: str) -> bool:
    """Return whether keys from there may be believed.

    A file is named by its path from the root; a URL is of https, or of http and this machine.

    >>> [is_key_source(text) for text in ("/etc/keys.json", "https://id.test/k", "http://id.test/k")]
    [True, True, False]
    """
    if "://" not in text:
        return text.startswith("/")
    try:
        found = urlsplit(text)
        host = found.hostname or ""
    except ValueError:
        return False
    is_safe = found.scheme == "https" or (found.scheme == "http" and is_loopback(host))
    return host != "" and is_safe
