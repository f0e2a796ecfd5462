"""The server's half of a SCRAM log-in, without sockets: two messages in order.

Invariants:
1. An unknown user sees the same exchange as a known one with a wrong password: a salt that stays
   the same, the usual iteration count, and the refusal after the proof.
2. Whatever is wrong, the answer is `AccessError`; the log-in cannot be continued after it.

Elsewhere: arithmetic (`access.scram`), the client's half (`access.scram_client`).
Source: RFC 5802 section 3.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

from millstream.access.records import User, Verifier
from millstream.access.scram import (
    HASHES,
    NONCE_BYTES_MAX,
    attributes,
    decoded,
    encoded,
    prepared,
    sign,
    text_of,
    unescaped_name,
    xor,
)
from millstream.errors import AccessError, RemoteProtocolError

__all__ = ["Lookup", "ScramServer"]

Lookup = Callable[[str], tuple[User | None, Verifier]]
"""Name -> (user, verifier); for an unknown name (None, a decoy that no password satisfies)."""


class ScramServer:
    """One log-in attempt: `step` is called with each message of the client.

    `on_end` is told a name, and whether its password was shown to be known; it returns for how
    many seconds a refusal is to wait, which `pause_s` then is.
    """

    def __init__(
        self,
        mechanism: str,
        lookup: Lookup,
        on_end: Callable[[str, bool], float] = lambda name, is_right: 0.0,
        *,
        nonce: str = "",
    ) -> None:
        self._on_end = on_end
        self.pause_s = 0.0
        self._name = ""
        self.mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._lookup = lookup
        self._own_nonce = nonce or secrets.token_urlsafe(24)
        self._steps = iter((self._first, self._final))
        self._user: User | None = None
        self._verifier: Verifier | None = None
        self._gs2_header = ""
        self._nonce = ""
        self._exchange = ""

    def step(self, data: bytes) -> tuple[bytes, User | None]:
        """Answer a message; the user is returned with the last answer.

        Raises:
            AccessError: refused: malformed, wrong password, unknown user, or out of turn.
        """
        answer = next(self._steps, None)
        if answer is None:
            raise AccessError("this log-in is over; begin another")
        try:
            return answer(text_of(data))
        except RemoteProtocolError as error:
            self._steps = iter(())
            raise AccessError(str(error), code="malformed_login") from error
        except AccessError:
            self._steps = iter(())
            raise

    def _first(self, message: str) -> tuple[bytes, User | None]:
        flag, _, rest = message.partition(",")
        authorised_as, _, bare = rest.partition(",")
        if flag not in ("n", "y") or authorised_as:
            raise RemoteProtocolError("channel binding and other identities are not offered")
        found = attributes(bare)
        name, nonce = unescaped_name(found.get("n", "")), found.get("r", "")
        if not name or not nonce or len(nonce) > NONCE_BYTES_MAX or "m" in found:
            raise RemoteProtocolError("the first message must hold a name and a nonce")
        self._name = prepared(name)
        self._user, self._verifier = self._lookup(self._name)
        self._gs2_header = f"{flag},,"
        self._nonce = nonce + self._own_nonce
        salt, iterations = self._verifier.salt, self._verifier.iterations
        challenge = f"r={self._nonce},s={encoded(salt)},i={iterations}"
        self._exchange = f"{bare},{challenge}"
        return challenge.encode(), None

    def _final(self, message: str) -> tuple[bytes, User | None]:
        assert self._verifier is not None
        found = attributes(message)
        if found.get("r") != self._nonce or list(found)[-1] != "p":
            raise RemoteProtocolError("the last message must repeat the nonce and end in a proof")
        if decoded(found.get("c", "")) != self._gs2_header.encode():
            raise RemoteProtocolError("the two messages disagree on channel binding")
        exchange = f"{self._exchange},{message[: message.rindex(',p=')]}"
        is_proven = self._proves(decoded(found["p"]), exchange)
        self.pause_s = self._on_end(self._name, self._user is not None and is_proven)
        if self._user is None or not is_proven:
            raise AccessError("wrong user name or password")
        signature = sign(self._hash, self._verifier.server_key, exchange)
        return f"v={encoded(signature)}".encode(), self._user

    def _proves(self, proof: bytes, exchange: str) -> bool:
        assert self._verifier is not None
        stored_key = self._verifier.stored_key
        if len(proof) != len(stored_key):
            raise RemoteProtocolError("a proof of another length")
        client_key = xor(proof, sign(self._hash, stored_key, exchange))
        shown = hashlib.new(self._hash, client_key).digest()
        return hmac.compare_digest(shown, stored_key)
