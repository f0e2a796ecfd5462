"""Whose tokens a node takes, as its settings say, for each process of it that judges them.

Invariants:
1. The libraries that judge tokens are imported only where tokens are taken.
2. Over HTTP the same are taken as by coordination: of whom the node was told at its start, else
   what is set for all nodes, from the moment that this process hears of it.

Elsewhere: judging (`access.token_keys`), whose tokens (`coordination.aio.provider`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from millstream.coordination.aio.provider import Provider
from millstream.errors import AccessError
from millstream.node.settings import Settings

if TYPE_CHECKING:
    from millstream.access.token_keys import TokenKeys
    from millstream.access.tokens import Bearer

__all__ = ["NodeTokens", "TokenOrder", "keep_tokens", "token_keys", "token_order"]


class TokenOrder(msgspec.Struct, frozen=True):
    """Whose tokens are taken."""

    issuer: str
    audience: str
    groups_claim: str
    source: str
    """Of the issuer's keys."""


def token_order(settings: Settings) -> TokenOrder | None:
    """Return whose tokens a node takes; None: nobody's."""
    issuer, audience = settings.oidc_issuer, settings.oidc_audience
    if issuer is None or audience is None or settings.oidc_jwks is None:
        return None
    return TokenOrder(issuer, audience, settings.oidc_groups_claim, settings.oidc_jwks)


def token_keys(order: TokenOrder | None) -> TokenKeys | None:
    """Return who judges them, not begun yet; to be called in the loop."""
    if order is None:
        return None
    from millstream.access.token_keys import TokenKeys
    from millstream.access.tokens import TokenRules

    rules = TokenRules(order.issuer, order.audience, order.groups_claim)
    return TokenKeys(rules, order.source)


class NodeTokens:
    """Judges tokens that are shown over HTTP: a `gateway.core.api.tokens.TokenHost`.

    Args:
        own: judges those of whom the node was told, if it was.
        told: what is set for all nodes, by the keys.
    """

    def __init__(self, own: TokenKeys | None, told: Callable[[], Mapping[str, str]]) -> None:
        self._provider = Provider(own, lambda key: _encoded(told().get(key.decode())))

    @property
    def is_taking(self) -> bool:
        """Whether tokens are taken at all."""
        return self._provider.is_there

    async def check(self, token: bytes) -> Bearer:
        """Return whom a token is about; raises as `access.tokens.believed`."""
        tokens = self._provider.tokens
        if tokens is None:
            raise AccessError("the token is of nobody whose tokens are taken", code="bad_token")
        return await tokens.check(token)

    def lasts(self, bearer: Bearer) -> bool:
        """Return whether the token of a bearer has not ended, and such tokens are taken still."""
        tokens = self._provider.tokens
        return tokens is not None and tokens.lasts(bearer)

    async def close(self) -> None:
        """Keep no keys any more but the node's own."""
        await self._provider.close()


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def keep_tokens(
    settings: Settings, stack: AsyncExitStack, told: Callable[[], Mapping[str, str]] = dict
) -> NodeTokens:
    """Begin to judge the tokens that a node takes, until the stack is closed."""
    own = token_keys(token_order(settings))
    if own is not None:
        stack.push_async_callback(own.close)
        own.start()
    tokens = NodeTokens(own, told)
    stack.push_async_callback(tokens.close)
    return tokens
