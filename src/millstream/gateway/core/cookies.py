"""The log-in cookie: user, expiry, and a signature over both.

Invariants:
1. A cookie ends when it expires, when the server process that signed it ends, when the user's
   record changes (the signature covers the verifier), and when the user logs out.
2. A cookie contains no secret, and its content is not trusted without its signature.
3. The token against requests of other sites is bound to its cookie.

Elsewhere: the page that issues cookies (`gateway.aio.node.session_pages`).
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from itertools import count
from typing import Final

from millstream.access.users import User

__all__ = ["COOKIE_BYTES_MAX", "COOKIE_NAME", "REVOKED_MAX", "SESSION_SECONDS", "CookieSigner"]

COOKIE_NAME: Final = "AuthSession"
SESSION_SECONDS: Final = 3600
COOKIE_BYTES_MAX: Final = 1024
REVOKED_MAX: Final = 10_000
"""Revoked cookies remembered after a log-out. Above it the one that ends first is dropped, and
every cookie that ends no later becomes invalid with it."""


class CookieSigner:
    """Makes and checks cookies.

    Args:
        key: random bytes of this server process.
        now_s: Unix time in seconds.
    """

    def __init__(self, key: bytes, now_s: Callable[[], int]) -> None:
        self._key = key
        self._now_s = now_s
        self._serials = count(1)
        self._revoked: dict[str, int] = {}
        """Serial number -> when the cookie would have ended."""
        self._over_s = 0
        """Cookies that end then or earlier are invalid."""

    def make(self, user: User) -> str:
        """Return a cookie's value for a user who has just logged in."""
        expires = self._now_s() + SESSION_SECONDS
        name = urlsafe_b64encode(user.name.encode()).decode().rstrip("=")
        serial = str(next(self._serials))
        return f"{name}.{expires}.{serial}.{self._sign(user, expires, serial)}"

    def csrf_token(self, value: str) -> str:
        """Return what a page shows with each change, beside this cookie: no other page has it."""
        return hmac.digest(self._key, f"csrf\0{value}".encode(errors="replace"), "sha256").hex()

    def is_csrf_token(self, value: str, token: str) -> bool:
        """Return whether a page has shown the token of this cookie."""
        return token.isascii() and hmac.compare_digest(self.csrf_token(value), token)

    def revoke(self, value: str, find: Callable[[str], User | None]) -> None:
        """End a cookie at log-out. An invalid one is ignored."""
        if self.check(value, find) is None:
            return
        _, expires, serial, _ = value.split(".")
        now_s = self._now_s()
        self._revoked = {one: end for one, end in self._revoked.items() if end > now_s}
        self._revoked[serial] = int(expires)
        if len(self._revoked) > REVOKED_MAX:
            first = min(self._revoked, key=self._revoked.__getitem__)
            self._over_s = max(self._over_s, self._revoked.pop(first))

    def check(self, value: str, find: Callable[[str], User | None]) -> User | None:
        """Return the user of a cookie; None if it is expired, forged or foreign."""
        parts = value.split(".")
        if len(value) > COOKIE_BYTES_MAX or len(parts) != 4 or not parts[1].isdecimal():
            return None
        name, expires, serial, signature = parts[0], int(parts[1]), parts[2], parts[3]
        try:
            user = find(urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode())
        except ValueError:
            return None
        if user is None or expires <= max(self._now_s(), self._over_s) or serial in self._revoked:
            return None
        if not signature.isascii():
            return None
        is_signed = hmac.compare_digest(signature, self._sign(user, expires, serial))
        return user if is_signed else None

    def _sign(self, user: User, expires: int, serial: str) -> str:
        verifier = next(iter(user.verifiers.values())).stored_key.hex()
        message = f"{user.name}\0{expires}\0{serial}\0{verifier}\0{','.join(user.roles)}"
        return hmac.digest(self._key, message.encode(errors="replace"), "sha256").hex()
