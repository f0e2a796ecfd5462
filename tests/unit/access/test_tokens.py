"""Tokens: what is believed, and everything that is not."""

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from millstream.access import tokens
from millstream.access.tokens import LEEWAY_S, Bearer, KeyName, believed, key_name, parse_keys
from millstream.errors import AccessError, UsageError
from support.node.token_issuer import NOW_S, RULES, claims, ec_key, jwk, jwks, rsa_key, token

KEYS = parse_keys(jwks())


def part(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(data).rstrip(b"=")


def signed_by_issuer(payload: bytes) -> bytes:
    """Return a token with any payload at all."""
    text = part({"alg": "RS256", "kid": "r"}) + b"." + part(payload)
    algorithm = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256)
    return text + b"." + part(algorithm.sign(text, rsa_key()))


def judged(data: bytes, now_s: float = NOW_S) -> Bearer:
    return believed(data, KEYS, RULES, now_s)


def why(data: bytes, now_s: float = NOW_S) -> str:
    with pytest.raises(AccessError) as caught:
        judged(data, now_s)
    return f"{caught.value.code}: {caught.value}"


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
def test_a_token_is_believed(algorithm: str) -> None:
    data = token(claims(groups=["b", "a", "b"], nbf=NOW_S), algorithm=algorithm)
    assert judged(data) == Bearer("ada", ("a", "b"), NOW_S + 600 + LEEWAY_S)


def test_a_token_names_its_key() -> None:
    assert key_name(token(algorithm="ES256")) == KeyName("ES256", "e")


# ---- signatures


def test_none_is_no_algorithm() -> None:
    for name in ("none", "None", ""):
        header = part({"alg": name, "kid": "r"})
        assert "is not signed" in why(header + b"." + part(claims()) + b".")


@pytest.mark.parametrize("name", ["HS256", "HS384", "HS512", "RS384", "ES384", "EdDSA", "rs256"])
def test_other_algorithms_are_refused(name: str) -> None:
    _, payload, signature = token().split(b".")
    assert "is not signed" in why(b".".join((part({"alg": name, "kid": "r"}), payload, signature)))


def test_a_public_key_is_no_shared_secret() -> None:
    """The confusion of RS256 with HS256: signed with what everybody knows."""
    secret = rsa_key().public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    for name in ("HS256", "RS256"):
        signed = part({"alg": name, "kid": "r"}) + b"." + part(claims())
        digest = hmac.digest(secret, signed, hashlib.sha256)
        assert why(signed + b"." + part(digest)).startswith("bad_token")


def test_a_key_of_another_kind_is_not_used() -> None:
    assert why(token(algorithm="ES256", kid="r")).startswith("unknown_token_key")
    assert why(token(algorithm="RS256", kid="e")).startswith("unknown_token_key")


def test_a_key_for_one_algorithm_is_not_used_for_another() -> None:
    keys = parse_keys(jwks(jwk("r", rsa_key(), alg="PS256")))
    assert believed(token(algorithm="PS256"), keys, RULES, NOW_S).name == "ada"
    with pytest.raises(AccessError, match="key"):
        believed(token(algorithm="RS256"), keys, RULES, NOW_S)


def test_an_unknown_key() -> None:
    assert why(token(kid="elsewhere")).startswith("unknown_token_key")


def test_the_key_of_somebody_else() -> None:
    assert "signature" in why(token(key=rsa_key(1)))


def test_keys_in_the_token_are_not_used() -> None:
    public = jwk("r", rsa_key(1))
    for headers in ({"jwk": public}, {"jku": "https://id.test/"}, {"x5u": "https://id.test/"}):
        assert "signature" in why(token(key=rsa_key(1), **headers))


def test_what_was_changed_is_not_believed() -> None:
    header, payload, signature = token().split(b".")
    assert "signature" in why(b".".join((header, part(claims(sub="root")), signature)))
    assert "signature" in why(b".".join((header, payload, signature[:-8] + b"AAAAAAAA")))
    assert "signature" in why(b".".join((header, payload, b"")))


def test_extensions_are_refused() -> None:
    assert "crit" in why(token(crit=["b64"], b64=False))


@pytest.mark.parametrize(
    "data",
    [
        b"", b".", b"..", b"a.b.c", b"\xff\xfe.x.y", part(b"[" * 9000) + b".x.y",
        part([]) + b".x.y", part({"alg": "RS256"}) + b".x.y",
        part({"alg": "RS256", "kid": 7}) + b".x.y", part({"alg": ["RS256"], "kid": "r"}) + b".x.y",
        part({"alg": "RS256", "kid": "r"}), part({"alg": "RS256", "kid": "r"}) + b".x",
        part({"alg": "RS256", "kid": "r"}) + b".x.y.z.a",
    ],
)  # fmt: skip
def test_what_is_no_token(data: bytes) -> None:
    assert why(data).startswith("bad_token")


def test_a_huge_token_is_not_looked_at() -> None:
    assert "bytes" in why(token(claims(more="x" * tokens.TOKEN_BYTES_MAX)))
    assert "bytes" in why(b"x" * 10_000_000)


def test_nested_claims() -> None:
    assert why(signed_by_issuer(b"[" * 9000)).startswith("bad_token")
    assert why(signed_by_issuer(b'"ada"')).startswith("bad_token")
    assert judged(token(claims(more={"a": [[{"b": []}]]}))).name == "ada"


# ---- claims


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"iss": "https://id.test/"}, "iss"), ({"iss": None}, "iss"), ({"iss": ["x"]}, "iss"),
        ({"aud": "other"}, "aud"), ({"aud": None}, "aud"), ({"aud": ["x", "y"]}, "aud"),
        ({"aud": {"millstream": 1}}, "aud"), ({"aud": "millstream2"}, "aud"),
        ({"exp": None}, "exp"), ({"exp": "soon"}, "exp"), ({"exp": True}, "exp"),
        ({"exp": NOW_S - LEEWAY_S}, "expired"), ({"exp": -1e300}, "expired"),
        ({"nbf": NOW_S + LEEWAY_S + 1}, "nbf"), ({"nbf": "then"}, "nbf"),
        ({"sub": None}, "sub"), ({"sub": ""}, "sub"), ({"sub": 7}, "sub"), ({"sub": "a b"}, "sub"),
        ({"sub": "@node"}, "sub"), ({"sub": "a\r\nb"}, "sub"), ({"sub": "x" * 256}, "sub"),
        ({"sub": "ä" * 128}, "sub"), ({"groups": [1]}, "groups"), ({"groups": {"a": 1}}, "groups"),
        ({"groups": 7}, "groups"), ({"groups": [f"g{n}" for n in range(101)]}, "groups"),
        ({"groups": [f"{n:0100}" for n in range(50)]}, "groups"),
    ],
)  # fmt: skip
def test_claims_that_are_not_right(others: dict[str, Any], said: str) -> None:
    found = why(signed_by_issuer(json.dumps(claims(**others)).encode()))
    assert found.startswith("bad_token")
    assert said in found


def test_clocks_are_forgiven_a_little() -> None:
    data = token(claims(exp=NOW_S, nbf=NOW_S))
    assert judged(data, NOW_S + LEEWAY_S - 1).until_s == NOW_S + LEEWAY_S
    assert judged(data, NOW_S - LEEWAY_S).name == "ada"
    assert "expired" in why(data, NOW_S + LEEWAY_S)


def test_one_audience_of_several() -> None:
    assert judged(token(claims(aud=["x", "millstream"]))).name == "ada"


def test_groups() -> None:
    assert judged(token(claims(groups="staff"))).groups == ("staff",)
    assert judged(token(claims(groups=["Domain Users", "", "a\nb", "x" * 256]))).groups == (
        "Domain Users",
    )  # fmt: skip
    elsewhere = RULES._replace(groups_claim="roles")
    data = token(claims(groups=["no"], roles=["yes"]))
    assert believed(data, KEYS, elsewhere, NOW_S).groups == ("yes",)


def test_half_a_character_is_no_name() -> None:
    for text in (b'"sub":"\\ud800"', b'"sub":"ada","groups":["\\ud800"]'):
        payload = json.dumps(claims(sub=None)).encode()[:-1] + b"," + text + b"}"
        assert why(signed_by_issuer(payload)).startswith("bad_token")


# ---- keys


def test_keys_that_are_not_used_are_left_out() -> None:
    p384 = ec.generate_private_key(ec.SECP384R1())
    oct_key = {"kty": "oct", "kid": "o", "k": "c2VjcmV0"}
    found = parse_keys(
        jwks(
            jwk("enc", rsa_key(), use="enc"), jwk("short", rsa_key(0, 1024)), jwk("p384", p384),
            oct_key, jwk("hs", rsa_key(), alg="HS256"), jwk("odd", rsa_key(), alg=["RS256"]),
            {"kty": "RSA", "kid": "bad", "n": "AQ", "e": 3}, {"kty": "RSA", "kid": "none"},
            {"kty": "EC", "kid": "off", "crv": "P-256", "x": "AQ", "y": "AQ"}, {"kid": "what"},
            jwk("sig", rsa_key(), use="sig"), jwk("e", ec_key()),
        )
    )  # fmt: skip
    assert sorted(found) == [("e", "EC"), ("sig", "RSA")]


def test_a_private_key_is_kept_as_a_public_one() -> None:
    private = json.loads(jwk_private())
    assert believed(token(kid="p"), parse_keys(jwks(private)), RULES, NOW_S).name == "ada"


def jwk_private() -> str:
    found = jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(), as_dict=True)
    return json.dumps({**found, "kid": "p"})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b'{"keys": 7}', b'{"keys": [7]}', b"[" * 9000, b"\xff",
        b" " * (tokens.KEY_SET_BYTES_MAX + 1),
        jwks(*({"kty": "oct", "kid": str(n)} for n in range(tokens.KEYS_MAX + 1))),
    ],
)  # fmt: skip
def test_what_is_no_list_of_keys(data: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        parse_keys(data)
    assert caught.value.code == "bad_key_set"
