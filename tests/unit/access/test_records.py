import pytest

from millstream.access.records import (
    GROUPS_MAX,
    User,
    bearer_user,
    checked_roles,
    make_verifiers,
    user_from_json,
    user_to_json,
)
from millstream.access.scram import HASHES
from millstream.errors import UsageError


def test_a_record_survives_its_json_form():
    verifiers = make_verifiers("secret", dict.fromkeys(HASHES, b"0123456789abcdef"))
    user = User("ada", ("admin",), verifiers)
    assert user_from_json(user_to_json(user)) == user


def test_roles_are_sorted_and_single():
    assert checked_roles(["read:b", "admin", "read:b"]) == ("admin", "read:b")


def test_roles_that_are_groups():
    roles = checked_roles(["group:staff", "group:a:b", "admin", "read:group"])
    assert User("ada", roles, {}).groups == ("a:b", "staff")
    with pytest.raises(UsageError, match="groups"):
        checked_roles([f"group:{number}" for number in range(GROUPS_MAX + 1)])


def test_what_a_token_says_gives_rights_in_buckets_and_groups_but_no_administrator():
    bearer = bearer_user("ada", ("admin", "read:shop", "write:*", "staff", "read:", "group:x"))
    assert bearer.roles == (
        "group:admin", "group:group:x", "group:read:", "group:staff", "read:shop", "write:*",
    )  # fmt: skip
    assert not bearer.is_admin
    assert bearer.may("read", "shop")
    assert bearer.may("write", "other")
    assert not bearer.may("write", "_replicator")
    assert not bearer.may("read", "other")
    assert bearer.verifiers == {}


def test_a_record_without_verifiers_is_refused():
    with pytest.raises(KeyError):
        user_from_json({"name": "x", "roles": []})
