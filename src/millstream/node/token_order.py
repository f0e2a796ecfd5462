"""The tokens that a node accepts by its settings, for each process that checks tokens.

Invariants:
1. The libraries that check tokens are imported only if tokens are accepted.
2. HTTP accepts the same tokens as coordination: those of the issuer given to the node at its
   start, else those of the issuer set for all nodes, as soon as this process knows that setting.

Elsewhere: checking (`access.token_keys`), the issuer (`coordination.aio.provider`).
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
    """The issuer whose tokens are accepted."""

    issuer: str
    audience: str
    groups_claim: str
    source: str
    """Where the issuer's keys are."""


def token_order(settings: Settings) -> TokenOrder | None:
    """Return the issuer whose tokens a node accepts; None: no issuer."""
    issuer, audience = settings.oidc_issuer, settings.oidc_audience
    if issuer is None or audience is None or settings.oidc_jwks is None:
        return None
    return TokenOrder(issuer, audience, settings.oidc_groups_claim, settings.oidc_jwks)


def token_keys(order: TokenOrder | None) -> TokenKeys | None:
    """Return a checker of tokens, not started yet; to be called in the loop."""
    if order is None:
        return None
    from millstream.access.token_keys import TokenKeys
    from millstream.access.tokens import TokenRules

    rules = TokenRules(order.issuer, order.audience, order.groups_claim)
    return TokenKeys(rules, order.source)


class NodeTokens:
    """Checks tokens of HTTP requests; implements `gateway.core.api.tokens.TokenApi`.

    Args:
        own: checks those of the issuer given to the node, if there is one.
        told: returns the settings for all nodes, by key.
    """

    def __init__(self, own: TokenKeys | None, told: Callable[[], Mapping[str, str]]) -> None:
        self._provider = Provider(own, lambda key: _encoded(told().get(key.decode())))

    @property
    def is_taking(self) -> bool:
        """Return whether tokens are accepted at all."""
        return self._provider.is_there

    async def check(self, token: bytes) -> Bearer:
        """Return the user of a token; raises as `access.tokens.believed`."""
        tokens = self._provider.tokens
        if tokens is None:
            raise AccessError("no issuer of tokens is set", code="bad_token")
        return await tokens.check(token)

    def lasts(self, bearer: Bearer) -> bool:
        """Return whether a bearer's token has not ended, and its issuer is still accepted."""
        tokens = self._provider.tokens
        return tokens is not None and tokens.lasts(bearer)

    async def close(self) -> None:
        """Drop all keys except the node's own."""
        await self._provider.close()


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def keep_tokens(
    settings: Settings, stack: AsyncExitStack, told: Callable[[], Mapping[str, str]] = dict
) -> NodeTokens:
    """Start to check the accepted tokens, until the stack is closed."""
    own = token_keys(token_order(settings))
    if own is not None:
        stack.push_async_callback(own.close)
        own.start()
    tokens = NodeTokens(own, told)
    stack.push_async_callback(tokens.close)
    return tokens
