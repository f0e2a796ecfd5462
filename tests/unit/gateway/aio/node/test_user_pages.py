async def test_users_are_kept_by_administrators(guarded, body, ada):
    eve = {"password": "secret", "roles": ["write:orders"]}
    await body(await guarded.put("/_millstream/users/eve", json=eve, headers=ada), 201)
    listed = await body(await guarded.get("/_millstream/users", headers=ada))
    assert {"name": "eve", "roles": ["write:orders"]} in listed["users"]
    shown = await guarded.get("/_millstream/users/eve", headers=ada)
    assert "verifiers" not in await body(shown)
    await body(await guarded.delete("/_millstream/users/eve", headers=ada))
    await body(await guarded.get("/_millstream/users/eve", headers=ada), 404)
    response = await guarded.delete("/_millstream/users/ada", headers=ada)
    assert (await body(response, 409))["error"] == "last_admin"
    for content in ({}, {"password": "x", "roles": "admin"}, {"password": "x", "roles": ["root"]}):
        await body(await guarded.put("/_millstream/users/eve", json=content, headers=ada), 400)


async def test_a_changed_user_is_dropped_from_the_other_listeners(guarded, guarded_node, ada):
    user = {"name": "zoe", "password": "secret", "roles": []}
    await guarded.post("/_millstream/users", json=user, headers=ada)
    await guarded.delete("/_millstream/users/zoe", headers=ada)
    assert guarded_node.dropped[-2:] == ["zoe", "zoe"]
