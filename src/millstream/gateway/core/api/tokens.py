"""Interface for checking the tokens of HTTP clients.

Elsewhere: the check (`access.tokens`), the implementation (`access.token_keys`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.access.tokens import Bearer

__all__ = ["TokenApi"]


class TokenApi(Protocol):
    """Checks tokens."""

    @property
    def is_taking(self) -> bool:
        """Return whether tokens are accepted at all."""

    async def check(self, token: bytes) -> Bearer:
        """Return the user of a token.

        Raises:
            AccessError: it is rejected; the message contains no part of it.
        """

    def lasts(self, bearer: Bearer) -> bool:
        """Return whether a bearer's token has not ended yet."""
