"""Whose tokens a node takes, as its settings say, for each process of it that judges them.

Invariants:
1. The libraries that judge tokens are imported only where tokens are taken.

Elsewhere: judging (`access.token_keys`), what is set for all nodes (`coordination.aio.provider`).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from millstream.node.settings import Settings

if TYPE_CHECKING:
    from millstream.access.token_keys import TokenKeys

__all__ = ["TokenOrder", "keep_tokens", "token_keys", "token_order"]


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


def keep_tokens(settings: Settings, stack: AsyncExitStack) -> TokenKeys | None:
    """Begin to judge the tokens that a node takes, until the stack is closed."""
    tokens = token_keys(token_order(settings))
    if tokens is not None:
        stack.push_async_callback(tokens.close)
        tokens.start()
    return tokens
