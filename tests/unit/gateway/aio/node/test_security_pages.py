from base64 import b64encode


def _basic(name, password):
    return {"Authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}


async def test_failed_logins_are_told_to_administrators(guarded, body, ada):
    for _ in range(2):
        await body(await guarded.get("/_session", headers=_basic("<b>eve</b>", "guessed")), 401)
    told = await body(await guarded.get("/_millstream/security", headers=ada))
    [failed] = told["failed_logins"]
    assert (failed["name"], failed["count"]) == ("<b>eve</b>", 2)
    assert failed["last_ms"] > 0
    assert "guessed" not in str(told)
    assert told["certificates"] == []
    assert told["tokens"] is None


async def test_others_are_told_nothing(guarded, body, ada):
    zoe = {"password": "secret", "roles": ["read:orders"]}
    await body(await guarded.put("/_millstream/users/zoe", json=zoe, headers=ada), 201)
    zoes = _basic("zoe", "secret")
    await body(await guarded.get("/_millstream/security", headers=zoes), 403)
    await body(await guarded.get("/_millstream/security"), 401)
