"""The pages in an HTTP test client: on a node without users, and on one that has them."""

from base64 import b64encode

import pytest
from aiohttp.test_utils import TestClient, TestServer

from millstream.access.token_keys import TokenKeys
from millstream.errors import UnavailableError
from millstream.gateway.aio.server import make_application
from millstream.node.token_order import NodeTokens
from support.node.token_issuer import NOW_S, RULES, claims, jwks, token


@pytest.fixture
async def client(open_node):
    async with TestClient(TestServer(make_application(open_node))) as client:
        yield client


@pytest.fixture
async def guarded(guarded_node):
    async with TestClient(TestServer(make_application(guarded_node))) as client:
        yield client


@pytest.fixture
def token_clock():
    """What time it is for tokens: one element, in seconds of the epoch."""
    return [NOW_S]


@pytest.fixture
async def bearing(guarded_node, token_clock):
    """The pages of a node that takes tokens, too."""
    keys = TokenKeys(RULES, "", now_s=lambda: token_clock[0], fetch=_keys)
    tokens = NodeTokens(keys, dict)
    async with TestClient(TestServer(make_application(guarded_node, tokens=tokens))) as client:
        yield client
    await tokens.close()
    await keys.close()


async def _keys():
    return jwks()


@pytest.fixture
def bearer():
    """Make the headers of a request by the bearer of a token."""

    def headers(*groups, **others):
        said = claims(groups=list(groups), **others)
        shown = token(said, algorithm="ES256").decode()
        return {"Authorization": f"Bearer {shown}"}

    return headers


def _no_data(bucket):
    return UnavailableError(f"no data of {bucket!r} here", code="no_data")


@pytest.fixture
async def dataless(open_node):
    """The pages of a node without data, which has design documents alone."""
    async with TestClient(TestServer(make_application(open_node, _no_data))) as client:
        yield client


@pytest.fixture
async def guarded_dataless(guarded_node):
    """The same where there are users."""
    async with TestClient(TestServer(make_application(guarded_node, _no_data))) as client:
        yield client


@pytest.fixture
def body():
    """Read a JSON answer and check its status."""

    async def read(response, status=200):
        assert response.status == status, await response.text()
        assert response.content_type == "application/json"
        return await response.json()

    return read


def _basic(name):
    return {"Authorization": "Basic " + b64encode(f"{name}:secret".encode()).decode()}


@pytest.fixture
def ada():
    return _basic("ada")


@pytest.fixture
def bob():
    return _basic("bob")


@pytest.fixture
def cleo():
    return _basic("cleo")


@pytest.fixture
async def forked(client, body):
    """A document with leaves 3-c and 3-b, and one that is deleted."""
    docs = [
        {"_id": "d", "n": sig, "_revisions": {"start": 3, "ids": [sig, "a", "r"]}} for sig in "bc"
    ]
    docs.append({"_id": "gone", "_rev": "1-z", "_deleted": True})
    asked = {"docs": docs, "new_edits": False}
    assert await body(await client.post("/orders/_bulk_docs", json=asked), 201) == []
