"""The provider of tokens of clients: the one that the node was started with, or that of all nodes.

Invariants:
1. The options of the node (`--oidc-issuer` and the others) come first. Otherwise the settings of
   all groups count (`GLOBAL.AUTH.JWKS`, `ISSUER`, `AUDIENCE`, `GROUPS`) from the moment the node
   learns them: other keys, other rules, or no tokens at all.
2. Tokens are accepted only where keys, issuer and audience are set, and the keys come from a
   trusted source. Otherwise this is logged once, and no client can log in with a token.

Elsewhere: the contents of a token (`access.tokens`), keys (`access.token_keys`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.model.addresses import is_key_source
from millstream.runtime.tasks import Tasks

if TYPE_CHECKING:
    from millstream.access.token_keys import TokenKeys

__all__ = ["PROVIDER_KEYS", "Provider", "Said"]

_LOG = logging.getLogger(__name__)
_GROUPS_CLAIM: Final = b"groups"
_JWKS: Final = b"GLOBAL.AUTH.JWKS"
_ISSUER: Final = b"GLOBAL.AUTH.ISSUER"
_AUDIENCE: Final = b"GLOBAL.AUTH.AUDIENCE"
_GROUPS: Final = b"GLOBAL.AUTH.GROUPS"
PROVIDER_KEYS: Final = (_JWKS, _ISSUER, _AUDIENCE, _GROUPS)
"""Settings of all groups that say whose tokens are taken."""


class Said(NamedTuple):
    """What is set for all groups; all of it is wanted."""

    source: str
    issuer: str
    audience: str
    groups_claim: str


def _opened(said: Said) -> TokenKeys | None:
    """Begin to keep the keys of a provider, or say why not and return None."""
    from millstream.access.token_keys import TokenKeys  # slow to import
    from millstream.access.tokens import TokenRules

    if not is_key_source(said.source):
        _LOG.error(
            "GLOBAL.AUTH.JWKS is %r, so no tokens are accepted: give an absolute path, or a URL "
            "with https (with http only for this machine)", said.source,
        )  # fmt: skip
        return None
    tokens = TokenKeys(TokenRules(said.issuer, said.audience, said.groups_claim), said.source)
    tokens.start()
    return tokens


class Provider:
    """Ended by `close`; all calls are made in the loop.

    Args:
        own: of the node; None: it was told none.
        setting: what is set for all groups under a key, or None.
        opened: begins to keep the keys of what is set.
    """

    def __init__(
        self,
        own: TokenKeys | None,
        setting: Callable[[bytes], bytes | None],
        opened: Callable[[Said], TokenKeys | None] = _opened,
    ) -> None:
        self._own, self._setting, self._open = own, setting, opened
        self._said: Said | None = None
        self._tokens: TokenKeys | None = None
        self._tasks = Tasks()

    @property
    def is_there(self) -> bool:
        """Whether tokens are taken, or would be if what is set made sense."""
        return self._own is not None or self._find() is not None

    @property
    def tokens(self) -> TokenKeys | None:
        """Checks tokens. None: tokens are not accepted."""
        if self._own is not None:
            return self._own
        said = self._find()
        if said != self._said:
            if self._tokens is not None:
                self._tasks.start(self._tokens.close(), name="end of a provider")
            self._said, self._tokens = said, self._open(said) if said is not None else None
        return self._tokens

    def _find(self) -> Said | None:
        source = self._setting(_JWKS)
        if not source:  # asked at each request of a client that has not logged in
            return None
        issuer, audience = self._setting(_ISSUER), self._setting(_AUDIENCE)
        if not issuer or not audience:
            return None
        claim = self._setting(_GROUPS) or _GROUPS_CLAIM
        return Said(source.decode(), issuer.decode(), audience.decode(), claim.decode())

    async def close(self) -> None:
        """Forget all keys but the node's own."""
        if self._tokens is not None:
            await self._tokens.close()
        await self._tasks.finish()
