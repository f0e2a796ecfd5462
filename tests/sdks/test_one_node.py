"""What a user of an official SDK does first, in every language, on one node."""

from __future__ import annotations

import pytest

from support.node.node_process import NodeProcess
from support.node.sdk_client import SdkClient
from support.node.waiting import until

LOGIN = ("ada", "correct horse, battery=staple")
ANYONE = ("anyone", "anything")
SOON_S = 3

Client = SdkClient


# -- beginning


def test_a_node_without_users_takes_anybody(open_node: NodeProcess, sdk: str, key: str) -> None:
    # The SDK for Java wants proof that the node knows the password, unless it is told not to.
    options = {"plain": True} if sdk == "java" else {}
    with SdkClient(sdk) as client:
        client.connect(open_node.kv, ANYONE, **options)
        client.do("open", bucket="documents")
        client.do("upsert", key=key, value={"n": 1})
        assert client.do("get", key=key)["value"] == {"n": 1}
        assert client.do("ping")["services"]["kv"] == ["ok"]
        client.do("close")


def test_a_wrong_password_is_refused(node: NodeProcess, sdk: str) -> None:
    with SdkClient(sdk) as client:
        who = client.at(node.kv, (LOGIN[0], "wrong"))
        # Some SDKs try until their time is over, and say so then.
        assert client.error("connect", **who, limit_s=5) in ("authentication", "timeout")


def test_a_bucket_that_is_not_there_takes_no_document(
    node: NodeProcess, sdk: str, key: str
) -> None:
    with SdkClient(sdk) as client:
        client.connect(node.kv, LOGIN)
        told = client.ask("open", bucket="nowhere", limit_s=5)
        if "error" not in told:  # the SDK for Node opens a bucket with the first request
            told = client.ask("upsert", key=key, value={}, limit_s=5)
        assert told.get("error") in ("bucket_not_found", "authentication", "timeout"), told


def test_every_service_answers_pings(client: Client, key: str) -> None:
    client.do("exists", key=key)  # the SDK for Node opens a bucket with the first request
    assert client.do("ping")["services"]["kv"] == ["ok"]
    services = client.do("ping_cluster")["services"]  # of the SDK for Java without kv and mgmt
    assert set(services) <= {"kv", "mgmt"}, services
    assert {state for states in services.values() for state in states} <= {"ok"}, services


# -- documents


def test_a_document_is_written_read_changed_and_removed(client: Client, key: str) -> None:
    value = {"name": "Ada", "born": 1815, "Ω": ["ü" * 1000, None, True, {"x": 0.5}]}
    first = client.do("upsert", key=key, value=value)
    assert client.do("get", key=key) == {"value": value, "cas": first["cas"]}
    second = client.do("replace", key=key, value={"n": 2}, cas=first["cas"])
    assert second["cas"] != first["cas"]
    assert client.error("replace", key=key, value={"n": 3}, cas=first["cas"]) == "cas_mismatch"
    assert client.error("remove", key=key, cas=first["cas"]) == "cas_mismatch"
    assert client.do("get", key=key)["value"] == {"n": 2}
    assert client.do("exists", key=key)["exists"]
    client.do("remove", key=key, cas=second["cas"])
    assert not client.do("exists", key=key)["exists"]
    for command, words in (("get", {}), ("remove", {}), ("replace", {"value": {"n": 4}})):
        assert client.error(command, key=key, **words) == "document_not_found"


def test_an_insert_does_not_overwrite(client: Client, key: str) -> None:
    client.do("insert", key=key, value={"n": 1})
    assert client.error("insert", key=key, value={"n": 2}) == "document_exists"
    assert client.do("get", key=key)["value"] == {"n": 1}


def test_durable_writes(client: Client, key: str) -> None:
    written = client.do("upsert", key=key, value={"n": 1}, majority=True)
    written = client.do("replace", key=key, value={"n": 2}, cas=written["cas"], majority=True)
    assert client.do("get", key=key) == {"value": {"n": 2}, "cas": written["cas"]}
    client.do("remove", key=key, cas=written["cas"], majority=True)
    assert client.error("get", key=key) == "document_not_found"


def test_expiry_and_touch(client: Client, key: str) -> None:
    other = f"{key}-other"
    client.do("upsert", key=key, value={}, expiry_s=60)
    client.do("upsert", key=other, value={})
    client.do("touch", key=key, expiry_s=SOON_S)
    assert client.error("touch", key=f"{key}-none", expiry_s=SOON_S) == "document_not_found"
    until(lambda: not client.do("exists", key=key)["exists"], lambda: client.sdk)
    assert client.error("get", key=key) == "document_not_found"
    assert client.do("exists", key=other)["exists"]


def test_a_replica_that_is_not_there_is_not_asked(client: Client, key: str) -> None:
    """The active copy answers; the SDK for Rust asks only for replicas."""
    written = client.do("upsert", key=key, value={"n": 1})
    if client.sdk == "rust":
        assert client.error("get_any_replica", key=key) == "unretrievable"
    else:
        found = client.do("get_any_replica", key=key)
        assert found == {"value": {"n": 1}, "cas": written["cas"]}
    assert client.do("get_all_replicas", key=key)["replicas"] == [False]


# -- what is not here


@pytest.mark.parametrize("command", ["look_inside", "change_inside"])
def test_parts_of_documents_are_not_available(client: Client, key: str, command: str) -> None:
    client.do("upsert", key=key, value={"n": 1})
    assert client.error(command, key=key) == "not_available"
    assert client.do("get", key=key)["value"] == {"n": 1}


def test_scopes_and_collections_are_not_available(client: Client, key: str) -> None:
    assert client.error("scopes") == "not_available"
    assert client.error("create_scope", name="s") == "not_available"
    told = client.error("get_in_collection", key=key, limit_s=10)
    assert told in ("not_available", "collection_not_found", "scope_not_found")


def test_queries_are_not_available(client: Client) -> None:
    assert client.error("query", limit_s=10) in ("not_available", "timeout")


# -- management


def test_buckets_are_made_shown_and_dropped(client: Client) -> None:
    name = f"made-{client.sdk}"
    assert "documents" in client.do("buckets")["names"]
    assert client.error("get_bucket", name=name) == "bucket_not_found"
    client.do("create_bucket", name=name)
    assert client.error("create_bucket", name=name) == "bucket_exists"
    client.do("get_bucket", name=name)
    assert name in client.do("buckets")["names"]
    client.do("drop_bucket", name=name)
    assert client.error("drop_bucket", name=name) == "bucket_not_found"
    assert client.error("flush_bucket", name="documents") == "not_flushable"


def test_users_are_shown_to_administrators(client: Client) -> None:
    assert client.do("users")["users"] == {"ada": ["admin:"]}
    client.do("get_user", name="ada")
    assert client.error("get_user", name="none") == "user_not_found"
    roles = client.do("roles")["names"]
    assert sorted(roles) == [
        "admin", "data_dcp_reader", "data_reader", "data_writer", "views_admin",
    ]  # fmt: skip


def test_users_are_made_and_removed(client: Client, node: NodeProcess) -> None:
    name = f"made-{client.sdk}"
    client.do("upsert_user", name=name, password="of the made one")
    assert client.do("users")["users"][name] == ["admin:"]
    with SdkClient(client.sdk) as other:
        other.connect(node.kv, (name, "of the made one"))
        other.do("close")
    client.do("drop_user", name=name)
    assert name not in client.do("users")["users"]
    assert client.error("drop_user", name=name) == "user_not_found"
    client.do("groups")
