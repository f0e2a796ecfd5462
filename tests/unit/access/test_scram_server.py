import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.access.scram import HASHES
from millstream.access.scram_client import ScramClient
from millstream.access.users import UserStore
from millstream.errors import AccessError


@pytest.fixture(scope="module")
def users():
    store = UserStore()
    store.put("ada", "secret")
    store.put("a=b,c", "söcret")
    return store


def log_in(users, mechanism, name, password, nonce=""):
    client, server = ScramClient(mechanism, name, password, nonce=nonce), None
    server = users.scram_server(mechanism)
    challenge, user = server.step(client.first())
    assert user is None
    final, user = server.step(client.next(challenge))
    client.finish(final)
    return user


@pytest.mark.parametrize("mechanism", HASHES)
def test_the_right_password_logs_in(users, mechanism):
    assert log_in(users, mechanism, "ada", "secret").name == "ada"
    assert log_in(users, mechanism, "a=b,c", "söcret").name == "a=b,c"


def test_a_nonce_with_blanks_and_hex_text_is_continued(users):
    nonce = "0x3f 0x00 [ab] = 17 0xff"
    assert log_in(users, "SCRAM-SHA512", "ada", "secret", nonce).name == "ada"


@pytest.mark.parametrize(("name", "password"), [("ada", "wrong"), ("nobody", "secret")])
def test_wrong_ones_are_refused_alike(users, name, password):
    with pytest.raises(AccessError, match="wrong user name or password"):
        log_in(users, "SCRAM-SHA512", name, password)


def test_an_unknown_user_sees_a_salt_that_stays(users):
    def salt_of(name):
        server = users.scram_server("SCRAM-SHA1")
        challenge, _ = server.step(ScramClient("SCRAM-SHA1", name, "x").first())
        return challenge.split(b",")[1:]

    assert salt_of("nobody") == salt_of("nobody") != salt_of("nobody2")


def test_a_third_message_is_out_of_turn(users):
    client, server = ScramClient("SCRAM-SHA1", "ada", "secret"), users.scram_server("SCRAM-SHA1")
    challenge, _ = server.step(client.first())
    server.step(client.next(challenge))
    with pytest.raises(AccessError, match="over"):
        server.step(b"again")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"p=tls-unique,,n=ada,r=x",
        b"n,a=eve,n=ada,r=x",
        b"n,,n=ada",
        b"n,,n=,r=x",
        b"n,,m=1,n=ada,r=x",
        b"n,,n=ada,n=eve,r=x",
        b"\xff\xfe",
        b"n,,n=ada,r=" + b"x" * 5000,
        b"n,,n=a\x07,r=x",
    ],
)
def test_malformed_first_messages(users, first):
    server = users.scram_server("SCRAM-SHA256")
    for message in (first, b"c=biws,r=x,p=AAAA"):
        with pytest.raises(AccessError):
            server.step(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: b"",
        lambda m: m.replace(b"c=biws", b"c=eSws"),
        lambda m: m.replace(b"r=", b"r=x"),
        lambda m: m[: m.rindex(b",p=")],
        lambda m: m + b",z=1",
        lambda m: m[: m.rindex(b",p=")] + b",p=AAAA",
        lambda m: m[: m.rindex(b",p=")] + b",p=*",
    ],
)
def test_malformed_last_messages(users, change):
    client, server = ScramClient("SCRAM-SHA1", "ada", "secret"), users.scram_server("SCRAM-SHA1")
    challenge, _ = server.step(client.first())
    message = client.next(challenge)
    with pytest.raises(AccessError):
        server.step(change(message))
    with pytest.raises(AccessError):
        server.step(message)


@given(st.lists(st.binary(max_size=80), max_size=3))
def test_any_bytes_are_refused_as_access_errors(users, messages):
    server = users.scram_server("SCRAM-SHA512")
    for message in messages:
        try:
            _, user = server.step(message)
        except AccessError:
            continue
        assert user is None
