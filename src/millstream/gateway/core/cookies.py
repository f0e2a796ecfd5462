"""The log-in cookie: who, until when, and a signature over both.

Invariants:
1. A cookie ends with its time, with the server process that signed it, and with any change of the
   user's record (the verifier is part of what is signed).
2. Nothing in a cookie is secret; nothing in it is believed without its signature.

Elsewhere: the page that hands them out (`gateway.aio.session_pages`).
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final

from millstream.access.users import User

__all__ = ["COOKIE_BYTES_MAX", "COOKIE_NAME", "SESSION_SECONDS", "CookieSigner"]

COOKIE_NAME: Final = "AuthSession"
SESSION_SECONDS: Final = 3600
COOKIE_BYTES_MAX: Final = 1024


class CookieSigner:
    """Makes and checks cookies.

    Args:
        key: random bytes of this server process.
        now_s: Unix time in seconds.
    """

    def __init__(self, key: bytes, now_s: Callable[[], int]) -> None:
        self._key = key
        self._now_s = now_s

    def make(self, user: User) -> str:
        """Return a cookie's value for a user who has just logged in."""
        expires = self._now_s() + SESSION_SECONDS
        name = urlsafe_b64encode(user.name.encode()).decode().rstrip("=")
        return f"{name}.{expires}.{self._sign(user, expires)}"

    def check(self, value: str, find: Callable[[str], User | None]) -> User | None:
        """Return the user a cookie stands for; None if it is expired, forged or foreign."""
        parts = value.split(".")
        if len(value) > COOKIE_BYTES_MAX or len(parts) != 3 or not parts[1].isdecimal():
            return None
        name, expires, signature = parts[0], int(parts[1]), parts[2]
        try:
            user = find(urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode())
        except ValueError:
            return None
        if user is None or expires <= self._now_s() or not signature.isascii():
            return None
        return user if hmac.compare_digest(signature, self._sign(user, expires)) else None

    def _sign(self, user: User, expires: int) -> str:
        verifier = next(iter(user.verifiers.values())).stored_key.hex()
        message = f"{user.name}\0{expires}\0{verifier}\0{','.join(user.roles)}"
        return hmac.digest(self._key, message.encode(), "sha256").hex()
