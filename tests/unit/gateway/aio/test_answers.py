import gzip

from millstream.errors import MillstreamError, UsageError
from millstream.gateway.aio.answers import loggable


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


async def test_a_body_may_come_compressed(client, body):
    coded = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    whole = gzip.compress(b'{"n":1}')
    await body(await client.put("/orders/x", data=whole, headers=coded), 201)
    assert (await body(await client.get("/orders/x")))["n"] == 1
    await body(await client.put("/orders/y", data=whole[:-9], headers=coded), 400)
    await body(await client.put("/orders/y", data=b"{}", headers=coded), 400)
    other = coded | {"Content-Encoding": "br"}
    await body(await client.put("/orders/y", data=b"{}", headers=other), 415)


def test_logs_have_nothing_that_a_function_threw():
    assert loggable(UsageError("the bucket is not there")) == "the bucket is not there"
    assert "secret" not in loggable(MillstreamError("the secret of a document", code="thrown"))
