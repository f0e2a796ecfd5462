"""An identity provider for tests: keys, the list of them, tokens signed with them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from millstream.access.tokens import TokenRules

NOW_S = 1_800_000_000.0
RULES = TokenRules("https://id.test", "millstream")


@cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def jwk(kid: str, key: Any, **members: Any) -> dict[str, Any]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, **members}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys or (jwk("r", rsa_key()), jwk("e", ec_key()))}).encode()


def claims(**others: Any) -> dict[str, Any]:
    found = {"iss": RULES.issuer, "aud": RULES.audience, "sub": "ada", "exp": NOW_S + 600}
    return {name: value for name, value in {**found, **others}.items() if value is not None}


def token(
    payload: dict[str, Any] | None = None,
    *,
    algorithm: str = "RS256",
    kid: str | None = None,
    key: Any = None,
    **headers: Any,
) -> bytes:
    is_ec = algorithm.startswith("ES")
    named = kid if kid is not None else "e" if is_ec else "r"
    return jwt.encode(
        claims() if payload is None else payload,
        key if key is not None else ec_key() if is_ec else rsa_key(),
        algorithm=algorithm,
        headers={"kid": named, **headers},
    ).encode()
