"""The users of several nodes as one value."""

import pytest

from millstream.access import shared_record
from millstream.access.records import User, make_verifiers
from millstream.access.scram import HASHES
from millstream.access.shared_record import decode_users, encode_users, with_user
from millstream.errors import ConditionError, CorruptionError, UsageError

VERIFIERS = make_verifiers("pw", dict.fromkeys(HASHES, b"0123456789abcdef"))
ADA = User("ada", ("admin",), VERIFIERS)
BOB = User("bob", ("group:staff",), VERIFIERS)


def test_it_survives_its_encoding() -> None:
    record = {"eve": None, "bob": BOB, "ada": ADA}
    assert decode_users(encode_users(record)) == record
    assert encode_users(record) == encode_users(dict(sorted(record.items())))


def test_the_first_one_names_those_who_were_there() -> None:
    assert with_user({}, {"ada": ADA}, "bob", BOB) == {"ada": ADA, "bob": BOB}
    assert with_user({"ada": ADA}, {"ada": ADA, "joe": BOB}, "bob", None) == {
        "ada": ADA, "bob": None,
    }  # fmt: skip


def test_an_administrator_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in (None, User("ada", (), VERIFIERS)):
        with pytest.raises(ConditionError):
            with_user({"ada": ADA}, {"ada": ADA}, "ada", user)
    monkeypatch.setattr(shared_record, "SHARED_USERS_MAX", 1)
    with pytest.raises(UsageError):
        with_user({"ada": ADA}, {}, "bob", BOB)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"7", b'{"format":2,"users":{}}', b'{"format":1}', b'{"format":1,"users":[]}',
        b'{"format":1,"users":{"ada":7}}', b'{"format":1,"users":{"ada":{"name":"ada"}}}',
        encode_users({"eve": ADA}), b"[" * 9000,
    ],
)  # fmt: skip
def test_what_is_something_else(data: bytes) -> None:
    with pytest.raises(CorruptionError) as caught:
        decode_users(data)
    assert caught.value.code == "bad_users_record"
