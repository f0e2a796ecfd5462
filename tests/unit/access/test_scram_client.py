import pytest

from millstream.access.scram_client import ScramClient
from millstream.errors import AccessError, RemoteProtocolError, UsageError

# RFC 5802 section 5 (SHA-1) and RFC 7677 section 3 (SHA-256): user "user", password "pencil"
VECTORS = [
    (
        "SCRAM-SHA1",
        "fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    (
        "SCRAM-SHA256",
        "rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
]


@pytest.mark.parametrize(("mechanism", "nonce", "challenge", "answer", "final"), VECTORS)
def test_published_vectors(mechanism, nonce, challenge, answer, final):
    client = ScramClient(mechanism, "user", "pencil", nonce=nonce)
    assert client.first() == f"n,,n=user,r={nonce}".encode()
    assert client.next(challenge.encode()) == answer.encode()
    client.finish(final.encode())


def test_a_server_without_the_verifier_is_refused():
    mechanism, nonce, challenge, _, _ = VECTORS[0]
    client = ScramClient(mechanism, "user", "pencil", nonce=nonce)
    client.next(challenge.encode())
    with pytest.raises(AccessError, match="do not trust"):
        client.finish(b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAA=")


def test_finish_before_the_challenge_is_refused():
    with pytest.raises(AccessError):
        ScramClient("SCRAM-SHA1", "user", "pencil").finish(b"v=")


@pytest.mark.parametrize(
    ("challenge", "error"),
    [
        (b"r=other,s=QSXCR+Q6sek8bf92,i=4096", AccessError),
        (b"r=abc,s=QSXCR+Q6sek8bf92,i=4096", AccessError),
        (b"r=abcd,s=QSXCR+Q6sek8bf92,i=1", AccessError),
        (b"r=abcd,s=QSXCR+Q6sek8bf92,i=9999999", AccessError),
        (b"r=abcd,s=QSXCR+Q6sek8bf92,i=99999999999", RemoteProtocolError),
        (b"r=abcd,i=4096", RemoteProtocolError),
        (b"r=abcd,s=%%%,i=4096", RemoteProtocolError),
        (b"\xff", RemoteProtocolError),
        (b"nonsense", RemoteProtocolError),
        (b"e=unknown-user", AccessError),
    ],
)
def test_unsafe_or_malformed_challenges_are_refused(challenge, error):
    with pytest.raises(error):
        ScramClient("SCRAM-SHA512", "user", "pencil", nonce="abc").next(challenge)


def test_names_are_escaped():
    client = ScramClient("SCRAM-SHA512", "a=b,c", "x", nonce="n")
    assert client.first() == b"n,,n=a=3Db=2Cc,r=n"


def test_an_unknown_mechanism_is_a_usage_error():
    with pytest.raises(UsageError):
        ScramClient("CRAM-MD5", "user", "x")


def test_forbidden_characters_are_named():
    with pytest.raises(AccessError, match="control"):
        ScramClient("SCRAM-SHA512", "a\x07", "x")
