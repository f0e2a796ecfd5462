"""The client's half of a SCRAM log-in, without sockets: three messages in order.

Invariants:
1. The steps run once, in order: `first`, `next`, `finish`.
2. After `finish` the server has proven that it knows the password's verifier too.
3. A challenge that would weaken or stall the client (few or millions of iterations, a nonce that
   is not ours continued) is refused before anything is derived from the password.

Elsewhere: arithmetic (`access.scram`), the server's half (`access.users`).
Source: RFC 5802 section 3.
"""

from __future__ import annotations

import hmac
import secrets

from millstream.access.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    attributes,
    decoded,
    derive_keys,
    encoded,
    escaped_name,
    prepared,
    sign,
    text_of,
    xor,
)
from millstream.errors import AccessError, RemoteProtocolError, UsageError

__all__ = ["ScramClient"]

_GS2_HEADER = "n,,"


class ScramClient:
    """One log-in attempt.

    Args:
        mechanism: a key of `access.scram.HASHES`; SCRAM-SHA512 is the one to prefer.
        user: name, may hold commas and `=`.
        password: any text SASLprep accepts.
        nonce: printable text without commas; random unless a test fixes it.

    Raises:
        UsageError: `unknown_mechanism`.
        AccessError: `bad_characters`.
    """

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str = "") -> None:
        if mechanism not in HASHES:
            raise UsageError(
                f"{mechanism} is no SCRAM mechanism; choose one of {', '.join(HASHES)}",
                code="unknown_mechanism",
            )
        self.mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._first_bare = f"n={escaped_name(prepared(user))},r={self._nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        return (_GS2_HEADER + self._first_bare).encode()

    def next(self, challenge: bytes) -> bytes:
        """Answer the server's challenge with the proof; takes milliseconds (PBKDF2).

        Raises:
            AccessError: the server refused, or asks for something unsafe.
            RemoteProtocolError: the challenge is malformed.
        """
        server_first = text_of(challenge)
        nonce, salt, iterations = self._read_challenge(attributes(server_first))
        keys = derive_keys(self._hash, self._password, salt, iterations)
        without_proof = f"c={encoded(_GS2_HEADER.encode())},r={nonce}"
        exchange = f"{self._first_bare},{server_first},{without_proof}"
        proof = xor(keys.client_key, sign(self._hash, keys.stored_key, exchange))
        self._server_signature = sign(self._hash, keys.server_key, exchange)
        return f"{without_proof},p={encoded(proof)}".encode()

    def finish(self, server_final: bytes) -> None:
        """Check the server's own proof.

        Raises:
            AccessError: the server refused, or does not know the password's verifier.
            RemoteProtocolError: the message is malformed.
        """
        found = attributes(text_of(server_final))
        if "e" in found:
            raise AccessError(f"log-in refused: {found['e']}")
        shown = decoded(found.get("v", ""))
        if not self._server_signature or not hmac.compare_digest(shown, self._server_signature):
            raise AccessError(
                "the server could not prove that it knows this user; do not trust it",
                code="false_server",
            )

    def _read_challenge(self, found: dict[str, str]) -> tuple[str, bytes, int]:
        if "e" in found:
            raise AccessError(f"log-in refused: {found['e']}")
        nonce, salt, count = found.get("r", ""), found.get("s", ""), found.get("i", "")
        if not salt or not count.isdecimal() or len(count) > len(str(ITERATIONS_MAX)):
            raise RemoteProtocolError("the server's SCRAM challenge lacks salt or iteration count")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AccessError("the server did not continue our nonce", code="false_server")
        iterations = int(count)
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AccessError(
                f"the server asks for {iterations} iterations; "
                f"{ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted",
                code="false_server",
            )
        return nonce, decoded(salt), iterations
