"""Users as Couchbase SDKs ask for them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from millstream.errors import UnavailableError
from millstream.gateway.aio.node import pool_bucket_pages, pool_user_pages

PATH = "/settings/rbac"
PLACES = ("users", "users/local", "users/local/bob", "users/external", "roles", "groups", "x/y")


async def test_users_are_shown_with_what_their_rights_are_called(
    guarded: Any, body: Any, ada: Any, guarded_node: Any
) -> None:
    guarded_node.users.put("eve", "a password", ["read:orders", "stream:*", "group:night"])
    listed = await body(await guarded.get(f"{PATH}/users", headers=ada), 200)
    assert await body(await guarded.get(f"{PATH}/users/local", headers=ada), 200) == listed
    eve = next(one for one in listed if one["id"] == "eve")
    assert (eve["domain"], eve["groups"], eve["external_groups"]) == ("local", ["night"], [])
    origins = [{"type": "user"}]
    assert eve["roles"] == [
        {"role": "data_reader", "bucket_name": "orders", "origins": origins},
        {"role": "data_dcp_reader", "bucket_name": "*", "origins": origins},
    ]
    assert await body(await guarded.get(f"{PATH}/users/local/eve", headers=ada), 200) == eve
    told = await body(await guarded.get(f"{PATH}/users/local/ada", headers=ada), 200)
    assert told["roles"] == [{"role": "admin", "origins": origins}]
    assert "password" not in str(listed)


async def test_nobody_is_in_another_domain(guarded: Any, body: Any, ada: Any) -> None:
    assert await body(await guarded.get(f"{PATH}/users/external", headers=ada), 200) == []
    answer = await guarded.get(f"{PATH}/users/external/bob", headers=ada)
    assert (answer.status, await answer.json()) == (404, "Unknown user.")


async def test_an_unknown_user_is_told_from_a_feature_that_is_not_here(
    guarded: Any, ada: Any
) -> None:
    for method, place, what in (
        ("GET", "users/local/none", "user"), ("DELETE", "users/local/none", "user"),
        ("GET", "groups/none", "group"),
    ):  # fmt: skip
        answer = await guarded.request(method, f"{PATH}/{place}", headers=ada)
        assert (answer.status, await answer.json()) == (404, f"Unknown {what}.")
    for method, place in (
        ("PUT", "groups/g"), ("DELETE", "groups/g"), ("PUT", "users/external/bob"),
        ("GET", "users/else/bob"), ("POST", "x"),
    ):  # fmt: skip
        answer = await guarded.request(method, f"{PATH}/{place}", headers=ada)
        assert (answer.status, await answer.text()) == (404, "Not found."), (method, place)


async def test_users_are_made_changed_and_removed(
    guarded: Any, body: Any, ada: Any, guarded_node: Any
) -> None:
    path = f"{PATH}/users/local/fay"
    form = {"name": "Fay", "password": "a password", "roles": "data_reader[orders:*:*],admin"}
    assert (await guarded.put(path, data=form, headers=ada)).status == 200
    made = guarded_node.users.get("fay")
    assert made.roles == ("admin", "read:orders")
    assert guarded_node.users.check_password("fay", "a password") is not None
    form = {"roles": "data_writer[*]", "groups": "night"}
    assert (await guarded.put(path, data=form, headers=ada)).status == 200
    changed = guarded_node.users.get("fay")
    assert changed.roles == ("group:night", "write:*")
    assert changed.verifiers == made.verifiers
    night = {"id": "night", "description": "", "roles": []}
    assert await body(await guarded.get(f"{PATH}/groups", headers=ada), 200) == [night]
    assert await body(await guarded.get(f"{PATH}/groups/night", headers=ada), 200) == night
    assert (await guarded.delete(path, headers=ada)).status == 200
    assert guarded_node.users.get("fay") is None


@pytest.mark.parametrize(
    "form",
    [
        {"password": "of guy", "roles": "data_backup[*]"},
        {"password": "of guy", "roles": "data_reader"},
        {"password": "of guy", "roles": "data_reader[orders:s]"},
        {"password": "of guy", "roles": "admin[orders]"},
        {"password": "of guy", "groups": "two words"},
        {"roles": "admin"},
        {},
    ],
)
async def test_a_user_with_less_or_more_than_was_asked_for_is_not_made(
    guarded: Any, body: Any, ada: Any, guarded_node: Any, form: dict[str, str]
) -> None:
    refused = await guarded.put(f"{PATH}/users/local/guy", data=form, headers=ada)
    assert (await body(refused, 400))["errors"]
    assert guarded_node.users.get("guy") is None


async def test_the_last_administrator_stays(guarded: Any, body: Any, ada: Any) -> None:
    told = await body(await guarded.delete(f"{PATH}/users/local/ada", headers=ada), 409)
    assert told["error"] == "last_admin"


async def test_every_right_of_a_bucket_has_a_role(client: Any, body: Any) -> None:
    roles = await body(await client.get(f"{PATH}/roles"), 200)
    assert [(one["role"], one.get("bucket_name")) for one in roles] == [
        ("admin", None), ("data_reader", "*"), ("data_writer", "*"), ("data_dcp_reader", "*"),
        ("views_admin", "*"),
    ]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
async def test_only_administrators_are_told_of_users(
    guarded: Any, body: Any, bob: Any, place: str
) -> None:
    for method in ("GET", "PUT", "DELETE"):
        await body(await guarded.request(method, f"{PATH}/{place}"), 401)
        await body(await guarded.request(method, f"{PATH}/{place}", headers=bob), 403)


async def test_attachments_in_a_bucket_of_this_name_stay_what_they_are(
    client: Any, body: Any
) -> None:
    await body(await client.put("/settings"), 201)
    put = await body(await client.put(f"{PATH}/users", data=b"mine"), 201)
    assert await (await client.get(f"{PATH}/users")).read() == b"mine"
    await body(await client.get(f"{PATH}/roles"), 404)
    assert (await client.post(f"{PATH}/users")).status == 405
    gone = await client.delete(f"{PATH}/users", params={"rev": put["rev"]})
    assert gone.status == 200


async def test_a_bucket_of_this_name_may_be_unknown_yet(
    guarded: Any, body: Any, ada: Any, guarded_node: Any
) -> None:
    guarded_node.unknown = UnavailableError("not read yet", code="buckets_unknown")
    form = {"password": "a password", "roles": "admin"}
    for method, place in (("PUT", "users/local/fay"), ("GET", "users"), ("POST", "x")):
        told = await guarded.request(method, f"{PATH}/{place}", data=form, headers=ada)
        assert (await body(told, 503))["error"] == "buckets_unknown"
    assert guarded_node.users.get("fay") is None


async def test_a_long_form_is_read_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, guarded: Any, body: Any, ada: Any
) -> None:
    """One of 60 KB took 16 ms."""
    threads = set[int]()
    for module, name in ((pool_bucket_pages, "parse_qs"), (pool_user_pages, "parse_rights")):
        call = getattr(module, name)

        def noted(*given: Any, call: Any = call, **named: Any) -> Any:
            threads.add(threading.get_ident())
            return call(*given, **named)

        monkeypatch.setattr(module, name, noted)
    form = {"password": "a password", "roles": ",".join(["admin"] * 5000)}
    answer = await guarded.put(f"{PATH}/users/local/long", data=form, headers=ada)
    assert answer.status == 200
    await guarded.delete(f"{PATH}/users/local/long", headers=ada)  # one administrator is left
    assert threads
    assert threading.get_ident() not in threads
