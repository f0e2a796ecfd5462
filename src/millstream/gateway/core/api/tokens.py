"""Who judges the tokens that clients show over HTTP.

Elsewhere: what is judged (`access.tokens`), who has this shape (`access.token_keys`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.access.tokens import Bearer

__all__ = ["TokenHost"]


class TokenHost(Protocol):
    """Judges tokens."""

    @property
    def is_taking(self) -> bool:
        """Whether tokens are taken at all."""

    async def check(self, token: bytes) -> Bearer:
        """Return whom a token is about.

        Raises:
            AccessError: it is not believed; the sentence shows no part of it.
        """

    def lasts(self, bearer: Bearer) -> bool:
        """Return whether the token of a bearer has not ended yet."""
