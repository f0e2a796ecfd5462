"""Users as Couchbase SDKs ask for them."""

from __future__ import annotations

from typing import Any

import pytest

PATH = "/settings/rbac"
PLACES = ("users", "users/local", "users/local/bob", "users/external", "roles", "groups")


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
    answer = await guarded.get(f"{PATH}/users/local/none", headers=ada)
    assert (answer.status, await answer.json()) == (404, "Unknown user.")
    for method, place in (
        ("GET", "groups"), ("GET", "groups/g"), ("PUT", "groups/g"), ("DELETE", "groups/g"),
        ("PUT", "users/local/bob"), ("DELETE", "users/local/bob"), ("GET", "users/else/bob"),
        ("POST", "x"),
    ):  # fmt: skip
        answer = await guarded.request(method, f"{PATH}/{place}", headers=ada)
        assert (answer.status, await answer.text()) == (404, "Not found."), (method, place)


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
