"""The pages of a node that only indexes."""

import pytest
from aiohttp.test_utils import TestClient, TestServer

from millstream.errors import UnavailableError
from millstream.gateway.aio.server import make_application


def refusal(bucket):
    return UnavailableError(f"ask elsewhere for {bucket}", code="no_data_role", retry="never")


@pytest.fixture
async def dataless(open_node):
    async with TestClient(TestServer(make_application(open_node, refusal))) as client:
        yield client


async def test_views_are_answered(dataless, body):
    await body(await dataless.get("/orders/_design/d/_view/v"))
    await body(await dataless.get("/orders/_design/d/_info"))
    await body(await dataless.get("/orders/_design_docs"))
    await body(await dataless.get("/_active_tasks"))
    await body(await dataless.get("/_millstream/node"))
    await body(await dataless.get("/_up"))


@pytest.mark.parametrize(
    ("method", "path", "bucket"),
    [
        ("GET", "/orders", "orders"),
        ("PUT", "/a%2Fb", "a"),
        ("GET", "/orders/doc", "orders"),
        ("POST", "/orders/_bulk_docs", "orders"),
        ("GET", "/_millstream/buckets/orders/partitions", "orders"),
        ("GET", "/_millstream/shared", "_millstream"),
        ("DELETE", "/orders/_design/d/_view/v", "orders"),
    ],
)
async def test_what_needs_documents_is_refused(dataless, body, method, path, bucket):
    answered = await body(await dataless.request(method, path), 503)
    assert answered == {"error": "no_data_role", "reason": f"ask elsewhere for {bucket}"}


async def test_whoever_is_not_logged_in_is_told_nothing(guarded_node, body, bob):
    async with TestClient(TestServer(make_application(guarded_node, refusal))) as client:
        await body(await client.get("/orders"), 401)
        await body(await client.get("/orders", headers=bob), 503)
