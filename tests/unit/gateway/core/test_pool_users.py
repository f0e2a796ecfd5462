"""Users in the form of Couchbase Server, and back."""

from __future__ import annotations

import pytest

from millstream.access.records import User
from millstream.errors import UsageError
from millstream.gateway.core.pool_users import (
    parse_groups,
    parse_rights,
    shown_group,
    shown_roles,
    shown_user,
)

EVERY = ("admin", "design:*", "group:night", "read:orders", "stream:a.b-c", "write:*")


def test_what_is_shown_and_sent_back_has_the_same_meaning() -> None:
    shown = shown_user(User("eve", EVERY, {}))
    said = [
        role["role"] + (f"[{role['bucket_name']}]" if "bucket_name" in role else "")
        for role in shown["roles"]
    ]
    form = {"roles": ",".join(said), "groups": ",".join(shown["groups"])}
    rights = [*parse_rights(form), *(f"group:{group}" for group in parse_groups(form))]
    assert sorted(rights) == sorted(EVERY)


def test_a_group_that_is_called_like_a_right_is_shown_as_a_group() -> None:
    shown = shown_user(User("eve", ("group:admin", "group:read:x"), {}))
    assert (shown["roles"], shown["groups"]) == ([], ["admin", "read:x"])
    assert shown_group("admin")["roles"] == []


@pytest.mark.parametrize(
    "said", ["read", "data_reader", "data_reader[]", "data_reader[a:s:*]", "admin[a]", "x[a]", "["]
)
def test_a_role_without_a_right_of_the_same_meaning_is_refused(said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rights({"roles": f"admin,{said}"})
    assert caught.value.code == "bad_role"


def test_a_role_may_name_all_scopes_of_a_bucket() -> None:
    assert parse_rights({"roles": "data_reader[a:*:*],data_writer[a:*]"}) == ["read:a", "write:a"]


def test_no_roles_are_no_rights() -> None:
    assert parse_rights({}) == parse_groups({}) == []
    assert len(shown_roles()) == 5
