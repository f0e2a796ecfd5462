"""ADMIN USER: shows and changes the users of the node or of the cluster.

Invariants:
1. Only administrators may use it. If there are no users yet, every client may.
2. No reply and no error shows a password, or its stored form.

Elsewhere: the record (`access.users`), which the guard reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from millstream.coordination.core.backend import UserChange
from millstream.vsr.core.values import error

if TYPE_CHECKING:
    from millstream.coordination.core.resp.session import RespSession

__all__ = ["user_command"]

_USAGE: Final = (
    "ADMIN USER SET name [PASSWORD password] [ROLES role...] [GROUPS group...], USER DEL name or "
    "USER LIST"
)
_OPTIONS: Final = (b"PASSWORD", b"ROLES", b"GROUPS")


def user_command(resp: RespSession, words: Sequence[bytes]) -> bytes | None:
    """Carry out what follows ADMIN USER."""
    name = words[0].upper() if words else b""
    guard = resp.guard
    if name == b"SET" and len(words) > 1:
        change = _change(words[1:])
        if isinstance(change, bytes):
            return change
        guard.set_user(change, resp.slot().fill)
        return None
    if name == b"DEL" and len(words) == 2:
        guard.delete_user(_text(words[1]), resp.slot().fill)
        return None
    if name == b"LIST" and len(words) == 1:
        guard.list_users(resp.slot().fill)
        return None
    return error("BADARG", _USAGE)


def _change(words: Sequence[bytes]) -> UserChange | bytes:
    found: dict[bytes, tuple[str, ...]] = {}
    option = b""
    for word in words[1:]:
        if word.upper() in _OPTIONS and option != b"PASSWORD":
            option = word.upper()
            if option in found:
                return error("BADARG", _USAGE)
            found[option] = ()
        elif not option:
            return error("BADARG", _USAGE)
        else:
            found[option] += (_text(word),)
            option = b"" if option == b"PASSWORD" else option
    password = found.get(b"PASSWORD")
    if password == ():
        return error("BADARG", _USAGE)
    return UserChange(
        _text(words[0]), password[0] if password else None, found.get(b"ROLES"),
        found.get(b"GROUPS"),
    )  # fmt: skip


def _text(word: bytes) -> str:
    return word.decode("utf-8", "replace")
