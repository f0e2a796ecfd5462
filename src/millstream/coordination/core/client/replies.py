"""Typed replies for clients of namespaces, made from the replies of the wire.

Invariants: values, tokens and ids are bytes as they came; paths and names are text; versions are
`Version`; times are milliseconds.

Elsewhere: the commands (`aio.client.async_client`), the node's side (`namespace.commands.tree`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.vsr.core.versions import NEVER, Version, parse_version

__all__ = [
    "Attributes",
    "Count",
    "Created",
    "Found",
    "Leader",
    "Page",
    "Taken",
    "Versioned",
    "attributes_of",
    "count_of",
    "data_of",
    "is_pending",
    "members_of",
    "places_of",
    "root_of",
    "version_of",
]


class Created(NamedTuple):
    """Where the element is; whether this call has made it (False: there was one before)."""

    path: str
    is_new: bool


class Versioned(NamedTuple):
    """The data of an element, and the version at which it became so."""

    data: bytes
    version: Version


class Found(NamedTuple):
    """Whether an element exists; how far down its path there is something, "" for nowhere."""

    exists: bool
    nearest: str


class Page(NamedTuple):
    """Some names or members in order; the token of the next page, None after the last one."""

    items: list[bytes]
    token: bytes | None


class Count(NamedTuple):
    """The value of a counter; whether it has stopped at a limit instead of going on."""

    value: int
    is_stopped: bool


class Taken(NamedTuple):
    """An item of a queue that this client has taken; how often it was delivered by now."""

    id: bytes
    value: bytes
    deliveries: int


class Leader(NamedTuple):
    """Who leads: its client id, the token of its lock, and what it has put on the element."""

    client: str
    token: Version
    data: bytes


class Attributes(NamedTuple):
    """What is known of an element. Times: ms since 1970, of the log. `user`: `u.*`, by full name.

    `sync`: a map `kind state size generation holders waiting`, as LOCK INFO has it, or None.
    """

    type: str
    flags: frozenset[str]
    created_version: Version
    version: Version
    child_version: Version
    created_ts: int
    ts: int
    owner_session: str | None
    children: int
    data_len: int
    sync: dict[bytes, Any] | None
    user: dict[str, bytes]


def version_of(text: Any) -> Version:
    """Return a version that a node said."""
    return parse_version(text) or NEVER


def count_of(reply: Any) -> Count:
    """Return what COUNTER INC and DEC have said: a number, big or not, or one with NOWRAP."""
    return Count(int(reply[0]), True) if isinstance(reply, list) else Count(int(reply), False)


def data_of(shown: Any) -> bytes:
    """Return the data of an element as TREE shows it; empty if it shows none."""
    if isinstance(shown, int):
        return b"%d" % shown
    return bytes(shown) if shown is not None else b""


def attributes_of(reply: dict[bytes, Any]) -> Attributes:
    """Return what GET ATTR NODATA has said."""
    owner = reply[b"owner_session"]
    return Attributes(
        reply[b"type"].decode(),
        frozenset(flag.decode() for flag in reply[b"flags"]),
        version_of(reply[b"created_version"]),
        version_of(reply[b"version"]),
        version_of(reply[b"child_version"]),
        reply[b"created_ts"],
        reply[b"ts"],
        owner.decode() if isinstance(owner, bytes) else None,
        reply[b"nchildren"],
        reply[b"data_len"],
        reply.get(b"sync"),
        {name.decode(): value for name, value in reply.items() if name.startswith(b"u.")},
    )


def is_pending(reply: Any) -> bool:
    """Tell whether it has to be asked for again: PENDING, alone or as the first of several."""
    first = reply[0] if isinstance(reply, list) and reply else reply
    return isinstance(first, bytes) and first == b"PENDING"


def members_of(reply: Any) -> list[str]:
    """Return the addresses of all nodes in a map of groups."""
    groups = reply.values() if isinstance(reply, dict) else ()
    found = [member for group in groups if isinstance(group, dict)
             for member in group.get(b"members", ())]  # fmt: skip
    return [member.decode() for member in found if isinstance(member, bytes) and b":" in member]


def root_of(path: str) -> str:
    """Return the namespace of a path, `/name`. Empty if it is no path."""
    parts = path.split("/", 2)
    return f"/{parts[1]}" if len(parts) > 1 and not parts[0] and parts[1] else ""


def places_of(reply: Any) -> dict[str, int]:
    """Return which group a namespace is in, as VDS of its path has said."""
    found = reply.items() if isinstance(reply, dict) else ()
    return {
        name.decode(): int(entry[b"group"])
        for name, entry in found
        if isinstance(entry, dict) and isinstance(entry.get(b"group"), int)
    }
