import asyncio

import msgspec
import pytest

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents import remote_documents as documents_elsewhere
from millstream.databases.documents.remote_documents import TRIES_MAX, DocumentsElsewhere
from millstream.errors import RoutingError, UnavailableError
from millstream.gateway.core.api.shared import AskedDocument
from millstream.model.partitions import partition_of

PARTITIONS = 4
NODES = {"a": NodeAt("a", 1), "b": NodeAt("b", 1)}


class Others:
    """Nodes that answer at most `fits` documents at a time."""

    def __init__(self):
        self.fits = 3
        self.asked = []
        self.refusals = 0
        self.text = None

    def node(self, node):
        return _Asked(self, node)


class _Asked:
    def __init__(self, others, node):
        self.others, self.at = others, node

    async def ask(self, method, path, content):
        await asyncio.sleep(0)
        assert (method, path) == ("POST", "/_millstream/buckets/a%2Fb/documents")
        asked = msgspec.json.decode(msgspec.json.encode(content))["documents"]
        self.others.asked.append((self.at.host, [one for one, *_ in asked]))
        if self.others.refusals:
            self.others.refusals -= 1
            raise RoutingError("it moved")
        if self.others.text is not None:
            return self.others.text
        found = [{"_id": i, "rev": r} if i != "none" else None for i, r, *_ in asked]
        return msgspec.json.encode({"documents": found[: self.others.fits]})


class Own:
    async def text(self, asked):
        return b'{"_id":"%b","own":1}' % asked.id.encode()


@pytest.fixture
def others(monkeypatch):
    monkeypatch.setattr(documents_elsewhere, "PAUSE_S", 0)
    return Others()


def place_of(partition):
    return NODES["ab"[partition % 2]]


async def texts(others, asked, place_of=place_of, own=None):
    documents = DocumentsElsewhere("a/b", PARTITIONS, place_of, others, own)
    found = [text async for text in documents.texts(asked)]
    return [None if text is None else msgspec.json.decode(text) for text in found]


async def test_documents_come_in_order_from_where_they_are(others):
    ids = [f"d{n}" for n in range(20)]
    asked = [AskedDocument(one, "1-x" if one == "d3" else None) for one in ids]
    found = await texts(others, [*asked, AskedDocument("_local/x"), AskedDocument("none")])
    assert [one["_id"] for one in found[:20]] == ids
    assert found[3]["rev"] == "1-x"
    assert found[20:] == [None, None]
    for host, together in others.asked:
        places = {place_of(partition_of(one.encode(), PARTITIONS)).host for one in together}
        assert places == {host}
    assert len(others.asked) < 20


async def test_those_of_this_node_are_not_asked_for(others):
    found = await texts(
        others, [AskedDocument(f"d{n}") for n in range(10)], own=(Own(), lambda p: p % 2 == 0)
    )
    assert [one["_id"] for one in found] == [f"d{n}" for n in range(10)]
    assert {host for host, _ in others.asked} == {"b"}
    assert any("own" in one for one in found)


async def test_a_partition_that_moves_is_asked_for_again(others):
    others.refusals = TRIES_MAX - 1
    assert await texts(others, [AskedDocument("d")])
    assert len(others.asked) == TRIES_MAX
    others.refusals = TRIES_MAX
    with pytest.raises(RoutingError):
        await texts(others, [AskedDocument("d")])
    with pytest.raises(UnavailableError) as nobody:
        await texts(others, [AskedDocument("d")], place_of=lambda _: None)
    assert nobody.value.code == "not_my_partition"


@pytest.mark.parametrize("text", [b"", b"\xff", b"{}", b'{"documents":[]}', b'{"documents":1}'])
async def test_an_answer_that_is_none(others, text):
    others.text = text
    with pytest.raises(UnavailableError) as raised:
        await texts(others, [AskedDocument("d")])
    assert raised.value.code == "node_failed"


async def test_a_node_that_hangs(others, monkeypatch):
    monkeypatch.setattr(documents_elsewhere, "DOCUMENTS_S_MAX", -1)
    with pytest.raises(UnavailableError) as raised:
        await texts(others, [AskedDocument("d")])
    assert raised.value.code == "node_failed"
