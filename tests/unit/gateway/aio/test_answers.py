async def test_who_is_nobody_may_look_at_the_door_only(guarded, body):
    await body(await guarded.get("/"))
    await body(await guarded.get("/_up"))
    for path in ("/_metrics", "/_millstream/node", "/_millstream/buckets", "/_millstream/users"):
        response = await guarded.get(path)
        assert (await body(response, 401))["error"] == "unauthorized"
        assert response.headers["WWW-Authenticate"].startswith("Basic")


async def test_rights_decide(guarded, body, bob):
    listed = await body(await guarded.get("/_millstream/buckets", headers=bob))
    assert len(listed["buckets"]) == 1
    await body(await guarded.get("/_millstream/node", headers=bob))
    for method, path in (
        ("GET", "/_metrics"),
        ("GET", "/_millstream/users"),
        ("PUT", "/_millstream/buckets/x"),
        ("DELETE", "/_millstream/buckets/orders"),
    ):
        response = await guarded.request(method, path, headers=bob)
        assert (await body(response, 403))["error"] == "forbidden"
