"""SCRAM arithmetic and message forms shared by client and server; no sockets, no dice.

Invariants:
1. Messages are split on commas only: some clients' nonces contain blanks and `0x..` text, which
   stricter parsers refuse.
2. Channel binding is not offered; the GS2 header is `n,,` (or `y,,` from a cautious client).
3. Text that is not plain ASCII goes through SASLprep (the `scramp` package has it); ASCII text is
   its own preparation, so that everyday log-ins import nothing.

Elsewhere: the two sides (`access.scram_client`, `access.users`).
Source: RFC 5802 (messages and keys), RFC 7677 (SHA-256), RFC 4013 (SASLprep).
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Final, NamedTuple

from millstream.errors import AccessError, RemoteProtocolError

__all__ = [
    "HASHES",
    "ITERATIONS_MAX",
    "ITERATIONS_MIN",
    "MECHANISMS",
    "NONCE_BYTES_MAX",
    "Keys",
    "attributes",
    "decoded",
    "derive_keys",
    "encoded",
    "escaped_name",
    "prepared",
    "sign",
    "text_of",
    "unescaped_name",
    "xor",
]

HASHES: Final = {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
"""Mechanism as written on the wire -> hash; the best first."""
MECHANISMS: Final = (*HASHES, "PLAIN")
ITERATIONS_MIN: Final = 4096
"""Below this a client refuses: a false server could guess the password from the proof."""
ITERATIONS_MAX: Final = 1_000_000
"""Above this a client refuses to answer: a false server could keep it busy for minutes."""
NONCE_BYTES_MAX: Final = 512


class Keys(NamedTuple):
    """What one password becomes under one hash, salt and iteration count."""

    client_key: bytes
    stored_key: bytes
    server_key: bytes


def derive_keys(hash_name: str, password: str, salt: bytes, iterations: int) -> Keys:
    """Return the keys of a password; some milliseconds of processor time (PBKDF2)."""
    salted = hashlib.pbkdf2_hmac(hash_name, prepared(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    return Keys(client_key, hashlib.new(hash_name, client_key).digest(), server_key)


def sign(hash_name: str, key: bytes, message: str) -> bytes:
    """Return the keyed hash of an exchange so far."""
    return hmac.digest(key, message.encode(), hash_name)


def xor(left: bytes, right: bytes) -> bytes:
    """Return the bitwise difference of two equally long strings."""
    assert len(left) == len(right)
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(len(left), "big")


def attributes(message: str) -> dict[str, str]:
    """Cut `n=..,r=..` into its attributes, on commas only.

    Raises:
        RemoteProtocolError: an attribute without `=`, or one given twice.
    """
    found: dict[str, str] = {}
    for part in message.split(","):
        name, equals, value = part.partition("=")
        if len(name) != 1 or not equals or name in found:
            raise RemoteProtocolError("malformed SCRAM message")
        found[name] = value
    return found


def text_of(message: bytes) -> str:
    """Decode a message.

    Raises:
        RemoteProtocolError: it is not UTF-8.
    """
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a SCRAM message must be UTF-8") from None


def encoded(data: bytes) -> str:
    """Return base64."""
    return b64encode(data).decode()


def decoded(text: str) -> bytes:
    """Reverse `encoded`.

    Raises:
        RemoteProtocolError: not base64.
    """
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise RemoteProtocolError("malformed base64 in a SCRAM message") from None


def escaped_name(name: str) -> str:
    """Return a user name as it is written in a message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped_name(name: str) -> str:
    """Reverse `escaped_name`."""
    return name.replace("=2C", ",").replace("=3D", "=")


def prepared(text: str) -> str:
    """Return the form in which a name or password enters the exchange (SASLprep).

    Raises:
        AccessError: `bad_characters`, the text holds characters that SASLprep forbids.
    """
    if text.isascii() and text.isprintable():
        return text
    from scramp.utils import ScramException, saslprep

    try:
        return str(saslprep(text))
    except ScramException as error:
        raise AccessError(
            "a user name or password may not hold control, private or mixed-direction characters",
            code="bad_characters",
        ) from error
