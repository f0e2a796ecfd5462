"""Tokens of an identity provider (JWT): which are believed, and who they say somebody is.

    bearer = believed(token, keys, rules, now_s)

Invariants:
1. Before a signature is found right nothing of a token is looked at but the key and the algorithm
   that it names. That is one of `ALGORITHMS`, and fits the key: never none, never a shared secret.
2. A token says who made it, for whom, whom it is about and when it ends, and all of that is right;
   `LEEWAY_S` forgives clocks that differ.
3. A token, what it says, and the list of keys are bounded. A token with too many groups is
   refused: without some of them it would mean something else.
4. No error shows any part of a token.

Elsewhere: where keys come from (`access.token_keys`).

Source: RFC 7515, 7517, 7519; RFC 8725 on what goes wrong with them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from millstream.errors import AccessError, UsageError

__all__ = [
    "ALGORITHMS",
    "GROUPS_BYTES_MAX",
    "GROUPS_MAX",
    "KEYS_MAX",
    "KEY_SET_BYTES_MAX",
    "LEEWAY_S",
    "TOKEN_BYTES_MAX",
    "Bearer",
    "Key",
    "KeyName",
    "Keys",
    "TokenRules",
    "believed",
    "key_name",
    "parse_keys",
]

ALGORITHMS: Final[Mapping[str, str]] = {"RS256": "RSA", "PS256": "RSA", "ES256": "EC"}
"""The accepted algorithms, and the kind of key of each."""
LEEWAY_S: Final = 60.0
"""Accepted difference between the clocks of the provider and this node."""
TOKEN_BYTES_MAX: Final = 16 * 1024
KEY_SET_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 100
"""Most keys of one provider."""
GROUPS_MAX: Final = 100
"""Most groups that a token may name: every change of its bearer is logged with them."""
GROUPS_BYTES_MAX: Final = 4096
"""Most bytes of all these names together."""
_NAME_BYTES_MAX: Final = 255
_RSA_BITS_MIN: Final = 2048
_RSA_BITS_MAX: Final = 8192
_CURVE: Final = "P-256"
_PUBLIC_MEMBERS: Final = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y")}
_NOT_IN_NAMES: Final = re.compile(r"[\x00-\x20\x7f]|\A@")
_NOT_IN_GROUPS: Final = re.compile(r"[\x00-\x1f\x7f]")
_MALFORMED: Final = (msgspec.DecodeError, jwt.PyJWTError, RecursionError, ValueError)
_JWS: Final = jwt.PyJWS(algorithms=list(ALGORITHMS))


class TokenRules(NamedTuple):
    """What a token has to say: its `iss`, one of its `aud`, and where its groups are."""

    issuer: str
    audience: str
    groups_claim: str = "groups"


class KeyName(NamedTuple):
    """Which key a token says that it is signed with."""

    algorithm: str
    kid: str


class Key(NamedTuple):
    """A public key; `algorithm` is the only one that it is for, or empty."""

    value: RSAPublicKey | EllipticCurvePublicKey
    algorithm: str = ""


Keys = Mapping[tuple[str, str], Key]
"""The keys by name and kind: RSA or EC."""


class Bearer(NamedTuple):
    """Whom a token is about, and when it ends, in seconds of the epoch; clocks are forgiven."""

    name: str
    groups: tuple[str, ...]
    until_s: float


class _Header(msgspec.Struct):
    alg: str
    kid: str
    crit: Any = None


def _refused(why: str, code: str = "bad_token") -> AccessError:
    return AccessError(f"the token {why}", code=code)


def key_name(token: bytes) -> KeyName:
    """Return which key is needed to judge a token.

    Raises:
        AccessError: `bad_token`: it is none that could be believed.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise _refused(f"has more than {TOKEN_BYTES_MAX} bytes; ask for fewer claims")
    head, _, _ = token.partition(b".")
    try:
        header = msgspec.json.decode(jwt.utils.base64url_decode(head), type=_Header)
    except _MALFORMED as error:
        raise _refused("is no signed JWT that names its algorithm and its key (kid)") from error
    if header.alg not in ALGORITHMS:
        raise _refused(f"is not signed by one of {', '.join(ALGORITHMS)}")
    if header.crit is not None:
        raise _refused("demands an extension (crit), and none is known here")
    return KeyName(header.alg, header.kid)


def believed(token: bytes, keys: Keys, rules: TokenRules, now_s: float) -> Bearer:
    """Return whom a token is about.

    Raises:
        AccessError: `bad_token`; `unknown_token_key`: a newer list may have its key.
    """
    algorithm, kid = key_name(token)
    key = keys.get((kid, ALGORITHMS[algorithm]))
    if key is None or key.algorithm not in ("", algorithm):
        raise _refused("is signed with a key that its issuer is not known to have",
                       "unknown_token_key")  # fmt: skip
    try:
        signed = _JWS.decode_complete(token, key=key.value, algorithms=[algorithm])
        claims = msgspec.json.decode(signed["payload"])
    except _MALFORMED as error:
        raise _refused("has a signature that is not of its issuer, or no claims") from error
    if not isinstance(claims, dict):
        raise _refused("has no claims")
    if claims.get("iss") != rules.issuer:
        raise _refused("is of another issuer (iss)")
    audience = claims.get("aud")
    if audience != rules.audience and not (
        isinstance(audience, list) and rules.audience in audience
    ):
        raise _refused("is for somebody else (aud)")
    until_s = _moment(claims, "exp") + LEEWAY_S
    if until_s <= now_s:
        raise _refused("has expired (exp); get a new one")
    if "nbf" in claims and _moment(claims, "nbf") > now_s + LEEWAY_S:
        raise _refused("is not good yet (nbf); look at the clocks")
    return Bearer(_subject(claims), _groups(claims.get(rules.groups_claim, [])), until_s)


def _moment(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _refused(f"has no time ({name}) in seconds")
    return float(value)


def _subject(claims: Mapping[str, Any]) -> str:
    name = claims.get("sub")
    if not isinstance(name, str) or not name or not _fits(name) or _NOT_IN_NAMES.search(name):
        raise _refused(
            f"is about nobody (sub): 1 to {_NAME_BYTES_MAX} bytes without spaces, not beginning "
            "with @"
        )
    return name


def _fits(name: str) -> bool:
    return len(name.encode(errors="replace")) <= _NAME_BYTES_MAX


def _groups(claim: object) -> tuple[str, ...]:
    """Return the groups of a claim, in order; names that no access list can have are left out."""
    found = [claim] if isinstance(claim, str) else claim
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise _refused("has groups that are no list of names")
    names = sorted({n for n in found if n and _fits(n) and not _NOT_IN_GROUPS.search(n)})
    if len(names) > GROUPS_MAX or sum(len(name.encode()) for name in names) > GROUPS_BYTES_MAX:
        raise _refused(
            f"names more than {GROUPS_MAX} groups, or has more than {GROUPS_BYTES_MAX} bytes of "
            "them; have the issuer put only those in that matter here"
        )
    return tuple(names)


# ---- keys


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def parse_keys(data: bytes) -> Keys:
    """Return the keys of a JWKS that can be used; others are left out.

    Raises:
        UsageError: `bad_key_set`: it is no JWKS, or too large.
    """
    if len(data) > KEY_SET_BYTES_MAX:
        raise UsageError(f"a JWKS has at most {KEY_SET_BYTES_MAX} bytes", code="bad_key_set")
    try:
        found = msgspec.json.decode(data, type=_KeySet).keys
    except _MALFORMED as error:
        raise UsageError(f"that is no JWKS: {error}", code="bad_key_set") from error
    if len(found) > KEYS_MAX:
        raise UsageError(f"a JWKS has at most {KEYS_MAX} keys", code="bad_key_set")
    keys: dict[tuple[str, str], Key] = {}
    for member in found:
        kid, kind, algorithm = (member.get(name, "") for name in ("kid", "kty", "alg"))
        if not all(isinstance(text, str) for text in (kid, kind, algorithm)):
            continue
        value = _public_key(member, kind) if member.get("use") != "enc" else None
        if value is not None and (algorithm == "" or ALGORITHMS.get(algorithm) == kind):
            keys[kid, kind] = Key(value, algorithm)
    return keys


def _public_key(
    member: Mapping[str, Any], kind: str
) -> RSAPublicKey | EllipticCurvePublicKey | None:
    """Return a key without whatever is private of it; None if it is not of those taken."""
    public = {name: member.get(name) for name in _PUBLIC_MEMBERS.get(kind, ())}
    if not all(isinstance(value, str) for value in public.values()):
        return None
    try:
        found = _FROM_JWK[kind](public) if kind in _FROM_JWK else None
    except _MALFORMED:
        return None
    if isinstance(found, RSAPublicKey):
        return found if _RSA_BITS_MIN <= found.key_size <= _RSA_BITS_MAX else None
    if isinstance(found, EllipticCurvePublicKey):
        return found if public["crv"] == _CURVE else None
    return None


_FROM_JWK: Final = {"RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk}
