"""How clients write the commands of registers: SET key value, CAS key expected value, GET key.

Invariants:
1. What is logged is bounded, and understood by the state machine: nothing else gets into the log.

Elsewhere: what the commands do (`registers`), all that is not about registers (`resp.session`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from millstream.vsr.core.values import error

__all__ = ["KEY_BYTES_MAX", "REGISTER_COMMANDS", "VALUE_BYTES_MAX", "Parser", "Wish"]

KEY_BYTES_MAX: Final = 1024
"""Of a register's name."""
VALUE_BYTES_MAX: Final = 1024 * 1024
"""Of what a register holds."""


class Wish(NamedTuple):
    """What a command asks of the group that has `key`.

    `is_stale`: content with the state of whichever member was asked. `needs_session`: one is
    opened for it if the connection has none.
    """

    is_change: bool
    argv: tuple[bytes, ...]
    key: bytes
    is_stale: bool = False
    needs_session: bool = False


Parser = Callable[[Sequence[bytes], int], Wish | bytes | None]
"""Takes a command's words and its client's time stamp (0: none); gives the wish, an error, or None
if the connection itself answers these words."""


def _set(argv: Sequence[bytes], _stamp: int) -> Wish | bytes:
    if len(argv) != 3:
        return error("BADARG", "SET key value")
    _, key, value = argv
    if len(key) > KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
        return _too_big()
    return Wish(True, (b"SET", key, value), key)


def _cas(argv: Sequence[bytes], _stamp: int) -> Wish | bytes:
    if len(argv) != 4:
        return error("BADARG", "CAS key expected value")
    _, key, expected, value = argv
    if len(key) > KEY_BYTES_MAX or max(len(expected), len(value)) > VALUE_BYTES_MAX:
        return _too_big()
    return Wish(True, (b"CAS", key, expected, value), key)


def _get(argv: Sequence[bytes], _stamp: int) -> Wish | bytes:
    if len(argv) == 2:
        key = argv[1]
        return _too_big() if len(key) > KEY_BYTES_MAX else Wish(False, (b"GET", key), key)
    options = [word.upper() for word in argv[2:]]
    is_stale = options[-1:] == [b"STALEREAD"]
    wanted = options[: len(options) - is_stale]
    if len(argv) < 2 or wanted not in ([], [b"META"]):
        return error("BADARG", "GET key [META] [STALEREAD]")
    key = argv[1]
    if len(key) > KEY_BYTES_MAX:
        return _too_big()
    return Wish(False, (b"GET", key, *wanted), key, is_stale)


def _too_big() -> bytes:
    return error("TOOBIG", f"a name has {KEY_BYTES_MAX} bytes at most, a value {VALUE_BYTES_MAX}")


REGISTER_COMMANDS: Final[Mapping[bytes, Parser]] = {b"SET": _set, b"GET": _get, b"CAS": _cas}
