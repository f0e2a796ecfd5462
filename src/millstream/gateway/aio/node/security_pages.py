"""Who failed to log in, until when certificates are valid, whose tokens are accepted.

    GET /_millstream/security

Invariants:
1. Only administrators are answered. Passwords, their verifiers and keys are never told.
2. A certificate is that which a listener shows its clients now: its file may be a newer one.

Elsewhere: counting (`access.failed_logins`), users (`user_pages`).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Final, TypedDict

from aiohttp import web

from millstream.gateway.aio.answers import NODE_API, TOKENS, answer, require
from millstream.gateway.aio.describing import gives
from millstream.gateway.core.api.node import CommonNodeApi

__all__ = ["FAILED_LOGINS_SHOWN_MAX", "certificates", "routes"]

FAILED_LOGINS_SHOWN_MAX: Final = 200
"""Names and places of failed log-ins in the answer."""
_ENCRYPTED: Final = ("http", "kv", "coord")
"""Listeners that have a certificate for clients, if the node has one."""
_SHAKE_S: Final = 2.0
"""How long a listener may take to show its certificate."""


class FailedLoginTold(TypedDict):
    """Failed log-ins of a name from an address; `last_ms` is Unix time."""

    name: str
    address: str
    count: int
    last_ms: int


class CertificateTold(TypedDict):
    """What a listener shows; null: it was not shown. `ends_ms` is Unix time."""

    listener: str
    subject: str | None
    ends_ms: int | None


class SecurityTold(TypedDict):
    """`tokens`: whose are accepted; null: nobody's."""

    failed_logins: list[FailedLoginTold]
    certificates: list[CertificateTold]
    tokens: dict[str, str | None] | None


@gives(SecurityTold)
async def _security(request: web.Request) -> web.Response:
    """Tell failed log-ins, certificates and the issuer of tokens.

    Right: admin.
    """
    require(request, "admin")
    api, tokens = request.app[NODE_API], request.app[TOKENS]
    now_ms = time.time_ns() // 10**6
    failed = [
        {
            "name": one.name,
            "address": one.address,
            "count": one.failures,
            "last_ms": now_ms - int(one.ago_s * 1000),
        }
        for one in api.users.failed_logins(FAILED_LOGINS_SHOWN_MAX)
    ]
    is_taking = tokens is not None and tokens.is_taking
    return answer(
        {
            "failed_logins": failed,
            "certificates": await certificates(api),
            "tokens": {"issuer": api.shown_settings().get("oidc_issuer")} if is_taking else None,
        }
    )


async def certificates(api: CommonNodeApi) -> list[CertificateTold]:
    """Return of each encrypted listener whose its certificate is and when it ends."""
    if api.shown_settings().get("tls_cert") is None:
        return []
    found = {name: at for name, at in api.addresses().items() if at and name in _ENCRYPTED}
    asked = (asyncio.to_thread(_certificate, name, address) for name, address in found.items())
    return list(await asyncio.gather(*asked))


def _certificate(listener: str, address: str) -> CertificateTold:
    """Return whose the certificate of a listener is and when it ends; null: it was not shown."""
    from cryptography.x509 import load_pem_x509_certificate

    host, _, port = address.rpartition(":")
    try:
        shown = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=_SHAKE_S)
        found = load_pem_x509_certificate(shown.encode())
    except (OSError, ValueError):
        return {"listener": listener, "subject": None, "ends_ms": None}
    return {
        "listener": listener,
        "subject": found.subject.rfc4514_string(),
        "ends_ms": int(found.not_valid_after_utc.timestamp() * 1000),
    }


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.get("/_millstream/security", _security)]
