"""Functions tried on documents, in a real sandbox."""

import pytest

from millstream.gateway.aio.answers import NODE_API
from millstream.gateway.aio.queries.try_pages import DOCUMENTS_MAX, ROWS_SHOWN_MAX

PATH = "/_millstream/buckets/orders/try"
MAP = "function (doc) { if (doc.n === 2) throw new Error('two'); emit(doc.n, doc.n * 2); }"


@pytest.fixture
def texts(client):
    found = client.app[NODE_API].scan.texts
    found |= {f"k{n}": b'{"_id":"k%d","_rev":"1-a","n":%d}' % (n, n) for n in range(5)}
    return found


async def test_rows_and_the_error_of_each_document(client, body, texts):
    found = await body(await client.post(PATH, json={"map": MAP, "reduce": "_sum"}))
    assert [one["id"] for one in found["documents"]] == sorted(texts)
    assert [one["rows"] for one in found["documents"]] == [
        [] if n == 2 else [{"key": n, "value": n * 2}] for n in range(5)
    ]
    assert "two" in found["documents"][2]["error"]
    assert found["reduced"] == 2 * (0 + 1 + 3 + 4)


async def test_an_own_reduce_gets_keys_and_values(client, body, texts):
    reduce = "function (keys, values) { return [keys.length, values[1]]; }"
    found = await body(await client.post(PATH, json={"map": MAP, "reduce": reduce, "limit": 2}))
    assert found["reduced"] == [2, 2]


async def test_few_documents_are_read_and_they_begin_where_asked(client, body, texts):
    found = await body(await client.post(PATH, json={"map": MAP, "limit": 1, "start": "k3"}))
    assert [one["id"] for one in found["documents"]] == ["k3"]
    assert client.app[NODE_API].scan.read == ["k3"]


async def test_what_does_not_compile_or_end_is_told(client, body, texts):
    broken = await body(await client.post(PATH, json={"map": "function (doc) {"}))
    assert (broken["documents"], broken["error"] is None) == ([], False)
    many = "function (doc) { for (let i = 0; i < 2000; i++) emit(i, null); }"
    found = await body(await client.post(PATH, json={"map": many, "limit": 1}))
    assert len(found["documents"][0]["rows"]) == ROWS_SHOWN_MAX
    assert found["documents"][0]["emitted"] == 2000


@pytest.mark.parametrize(
    "content",
    [{}, {"map": MAP, "limit": 0}, {"map": MAP, "limit": DOCUMENTS_MAX + 1},
     {"map": MAP, "language": "python"}, {"map": MAP, "else": 1}],
)  # fmt: skip
async def test_other_requests_are_refused(client, body, content):
    await body(await client.post(PATH, json=content), 400)


async def test_it_takes_the_rights_to_design_and_to_read(guarded, body, ada, bob):
    await body(await guarded.post(PATH, json={"map": MAP}), 401)
    await body(await guarded.post(PATH, json={"map": MAP}, headers=bob), 403)
    await body(await guarded.post(PATH, json={"map": MAP}, headers=ada))
