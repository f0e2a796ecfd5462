import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.access.records import User, Verifier, bearer_user, checked_roles
from millstream.errors import AccessError, UsageError
from millstream.gateway.core.user_documents import (
    gone_rev,
    groups_of,
    listed,
    parse_user,
    rev_of,
    rights_of,
    said_roles,
    shown_roles,
    user_name,
)

BOB = "org.couchdb.user:bob"
VERIFIERS = {"SCRAM-SHA1": Verifier(b"salt", 1, b"stored", b"server")}
DOCUMENT = {"_id": BOB, "name": "bob", "type": "user", "roles": [], "password": "pw"}


def parsed(doc_id=BOB, **changed):
    content = {name: value for name, value in {**DOCUMENT, **changed}.items() if value != ""}
    return parse_user(json.dumps(content).encode(), doc_id)


@given(st.lists(st.sampled_from([
    "admin", "read:shop", "write:*", "group:staff", "group:admin", "group:_admin", "group:a:b",
    "group:read:shop", "group:_x", "group:group:x",
])))  # fmt: skip
def test_what_is_shown_means_the_same_when_it_is_sent_back(roles):
    assert said_roles(shown_roles(roles)) == list(checked_roles(roles))
    assert checked_roles([*rights_of(roles), *(f"group:{one}" for one in groups_of(roles))]) == (
        checked_roles(roles)
    )


def test_roles_as_clients_know_them():
    assert shown_roles(["admin", "group:staff", "read:shop"]) == ["_admin", "read:shop", "staff"]
    assert said_roles(["editor", "admin", "editor"]) == ["group:admin", "group:editor"]
    with pytest.raises(AccessError, match="system roles"):
        said_roles(["_reader"])


def test_no_group_of_a_token_is_shown_as_more_than_a_group():
    bearer = bearer_user("eve", ("_admin", "admin", "_reader"))
    assert shown_roles(bearer.roles) == ["admin", "group:_admin", "group:_reader"]


def test_the_document_of_a_user():
    found = listed(User("bob", ("group:staff", "read:shop"), VERIFIERS))
    assert (found.id, found.rev[:2]) == (BOB, "1-")
    content = {"name": "bob", "type": "user", "roles": ["read:shop", "staff"]}
    assert json.loads(found.body) == content
    assert user_name(found.id) == "bob"
    assert user_name("org.couchdb.user:") is None
    assert user_name("bob") is None


def test_a_revision_is_that_of_one_record_and_tells_nothing_of_its_password():
    bob = User("bob", (), VERIFIERS)
    salted = {"SCRAM-SHA1": VERIFIERS["SCRAM-SHA1"]._replace(salt=b"other")}
    others = [User("bob", ("read:shop",), VERIFIERS), User("bob", (), salted)]
    assert rev_of(bob) not in map(rev_of, others)
    keys = {"SCRAM-SHA1": Verifier(b"salt", 1, b"of another", b"password")}
    assert rev_of(User("bob", (), keys)) == rev_of(bob)
    assert gone_rev(rev_of(bob)).startswith("2-")


def test_what_a_client_sends():
    name, sent = parsed(roles=["staff", "read:shop"], _rev="1-a")
    assert name == "bob"
    assert sent == ("1-a", False, "pw", ["group:staff", "read:shop"])
    assert parsed(None)[0] == "bob"
    assert parsed(password="")[1].password is None
    assert parse_user(b'{"_deleted":true,"_rev":"1-a"}', BOB)[1].is_deleted


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"type": "person"}, "type"), ({"type": ""}, "type"), ({"name": ""}, "name"),
        ({"name": "eve"}, "of the form"), ({"roles": ""}, "array"), ({"roles": {}}, "array"),
        ({"roles": [1]}, "strings"), ({"roles": [""]}, "strings"), ({"password": 1}, "password"),
        ({"roles": ["_replicator"]}, "system roles"),
    ],
)  # fmt: skip
def test_what_couchdb_forbids(changed, reason):
    with pytest.raises(AccessError, match=reason) as failure:
        parsed(**changed)
    assert failure.value.code == "forbidden"


def test_other_ids_and_members():
    with pytest.raises(UsageError, match="match the address"):
        parsed("org.couchdb.user:eve")
    with pytest.raises(AccessError, match="of the form"):
        parsed("_design/x", _id="_design/x")
    with pytest.raises(AccessError, match="of the form"):
        parse_user(json.dumps(DOCUMENT | {"_id": "bob"}).encode(), None)
    with pytest.raises(AccessError, match="kept as"):
        parsed("org.couchdb.user:bob\u00aa", _id="", name="bob\u00aa")
    for more in ({"email": "b@x"}, {"_attachments": {"a": {"data": ""}}}):
        with pytest.raises(UsageError, match="nothing else is kept"):
            parsed(**more)
