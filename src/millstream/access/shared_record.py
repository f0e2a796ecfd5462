"""The users of several nodes as one value: current and removed users.

Invariants:
1. At most `SHARED_USERS_MAX` users are named, removed ones included. The record says nothing about
   other users.
2. It contains verifiers, no passwords.

Elsewhere: one user (`access.records`), where the value is stored
(`coordination.aio.shared_users`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from millstream.access.records import User, user_from_json, user_to_json
from millstream.errors import ConditionError, CorruptionError, MillstreamError, UsageError

__all__ = ["SHARED_USERS_MAX", "SharedRecord", "decode_users", "encode_users", "with_user"]

SHARED_USERS_MAX: Final = 1000
"""Most users of all nodes together. The value is replaced as a whole."""
_FORMAT: Final = 1
SharedRecord = Mapping[str, User | None]
"""The users by name. None: removed."""


def with_user(
    known: SharedRecord, here: Mapping[str, User], name: str, user: User | None
) -> SharedRecord:
    """Return the record with a user as said; the first one names those of this node, too.

    Raises:
        ConditionError: `last_admin`.
        UsageError: `too_many_users`.
    """
    record = {**(known or here), name: user}
    if not any(one is not None and one.is_admin for one in {**here, **record}.values()):
        raise ConditionError(
            "one user must be an administrator; create another one first", code="last_admin"
        )
    if len(record) > SHARED_USERS_MAX:
        raise UsageError(
            f"the nodes have at most {SHARED_USERS_MAX} users together", code="too_many_users"
        )
    return record


def encode_users(record: SharedRecord) -> bytes:
    """Return the value; the same for the same users."""
    users = {name: user_to_json(user) if user else None for name, user in sorted(record.items())}
    return msgspec.json.encode({"format": _FORMAT, "users": users})


def decode_users(data: bytes) -> SharedRecord:
    """Reverse `encode_users`.

    Raises:
        CorruptionError: `bad_users_record`: it is something else, or a newer version's.
    """
    try:
        content: Any = msgspec.json.decode(data)
        if content["format"] != _FORMAT:
            raise ValueError(content["format"])
        users = {str(n): user_from_json(u) if u else None for n, u in content["users"].items()}
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError,
            RecursionError, MillstreamError) as error:  # fmt: skip
        raise CorruptionError(
            "what the nodes share of users is not what was written, or a newer version's",
            code="bad_users_record",
        ) from error
    if any(user is not None and user.name != name for name, user in users.items()):
        raise CorruptionError("a shared user has two names", code="bad_users_record")
    return users
