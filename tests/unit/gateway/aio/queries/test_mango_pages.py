"""`_find` and `_explain` over indexes and documents in memory."""

import asyncio
import json
import random

import pytest

from millstream.errors import ConditionError, UnavailableError

DOCUMENTS = [
    {"_id": f"d{n:02}", "_rev": "1-a", "n": n, "kind": "even" if n % 2 == 0 else "odd"}
    for n in range(40)
]


@pytest.fixture(autouse=True)
def documents(open_node):
    open_node.scan.texts = {one["_id"]: json.dumps(one).encode() for one in DOCUMENTS}


async def find(client, body, status=200, **options):
    response = await client.post("/orders/_find", json={"selector": {}} | options)
    return await body(response, status)


def numbers(found):
    return [document["n"] for document in found["docs"]]


async def test_without_an_index_all_documents_are_looked_at(client, body, open_node):
    found = await find(client, body, selector={"kind": "odd"}, limit=3, execution_stats=True)
    assert found["docs"] == DOCUMENTS[1:6:2]
    assert found["warning"] == "No matching index found, create an index to optimize query time."
    stats = found["execution_stats"]
    assert (stats["total_docs_examined"], stats["results_returned"]) == (6, 3)
    assert open_node.scan.read == [f"d{n:02}" for n in range(6)]


async def test_pages_follow_each_other(client, body):
    options = {"selector": {"kind": "odd"}, "limit": 6, "fields": ["n"]}
    seen, bookmark = [], None
    while True:
        found = await find(client, body, bookmark=bookmark, **options)
        if not found["docs"]:
            break
        seen += found["docs"]
        bookmark = found["bookmark"]
    assert seen == [{"n": n} for n in range(1, 40, 2)]
    assert found["bookmark"] == bookmark


async def test_ids_are_a_range_in_both_directions(client, body, open_node):
    selector = {"_id": {"$gt": "d10", "$lt": "d20"}}
    assert numbers(await find(client, body, selector=selector)) == list(range(11, 20))
    assert len(open_node.scan.read) == 11
    options = {"selector": selector, "sort": [{"_id": "desc"}], "limit": 4}
    found = await find(client, body, **options)
    assert numbers(found) == [19, 18, 17, 16]
    found = await find(client, body, bookmark=found["bookmark"], skip=1, **options)
    assert numbers(found) == [14, 13, 12, 11]


@pytest.mark.parametrize(
    "options",
    [{"limit": 0}, {"selector": {"n": {"$gt": 1, "$lt": 1}}}, {"selector": {"$or": []}}],
)
async def test_nothing_is_read_where_nothing_can_be_found(client, body, open_node, options):
    found = await find(client, body, **options)
    assert (found["docs"], found["bookmark"]) == ([], "nil")
    assert open_node.scan.read == []


async def index(client, body, *fields, **options):
    content = {"index": {"fields": list(fields)}, "ddoc": "d", "name": "i"} | options
    await body(await client.post("/orders/_index", json=content))


def rows(*documents):
    lines = [
        json.dumps({"id": one["_id"], "key": [one["n"]], "value": None, "doc": one}).encode()
        for one in documents
    ]
    return b",\r\n".join(lines)


async def test_an_index_is_read_in_the_range_of_the_selector(client, body, open_node):
    await index(client, body, "n")
    gone = {"_id": "gone", "n": 7}
    open_node.indexes.pieces = [
        b'{"total_rows":9,"offset":0,"rows":[\r\n' + rows(DOCUMENTS[6]),
        b",\r\n" + rows(gone).replace(json.dumps(gone).encode(), b"null"),
        b",\r\n" + rows(*DOCUMENTS[7:12]), b"\r\n]}\n",
    ]  # fmt: skip
    found = await find(
        client, body, selector={"n": {"$gt": 6}, "kind": "odd"}, limit=2, execution_stats=True
    )
    assert numbers(found) == [7, 9]
    assert "warning" not in found
    assert found["execution_stats"]["total_keys_examined"] == 5
    ((_, design, view, options),) = open_node.indexes.asked
    assert (design, view, options["startkey"], options["include_docs"]) == ("d", "i", [6], True)
    assert open_node.indexes.answers[0].is_closed
    assert open_node.scan.read == []
    await find(
        client, body, selector={"n": {"$gt": 6, "$lt": 9}}, sort=[{"n": "desc"}], update=False,
        stable=True, conflicts=True, bookmark=found["bookmark"],
    )  # fmt: skip
    options = open_node.indexes.asked[-1][3]
    assert (options["startkey"], options["startkey_docid"]) == ([9], "d09")
    assert (options["endkey"], options["descending"], options["update"]) == ([6], True, "false")
    assert options["stable"]
    assert options["conflicts"]


async def test_explanations(client, body, open_node):
    await index(client, body, "n")
    asked = {"selector": {"n": 3}, "use_index": "other"}
    found = await body(await client.post("/orders/_explain", json=asked))
    assert (found["dbname"], found["index"]["name"]) == ("orders", "i")
    assert found["mrargs"]["start_key"] == [3]
    assert open_node.indexes.asked == []
    found = await find(client, body, **asked)
    assert found["warning"].startswith("_design/other was not used")


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"selector": {"a": {"$no": 1}}}, 400, "invalid_operator"),
        ({"sort": ["x"]}, 400, "no_usable_index"),
        ({"limit": "x"}, 400, "invalid_non_neg_integer"),
    ],
)
async def test_refusals(client, body, options, status, code):
    assert (await find(client, body, status, **options))["error"] == code


async def test_bodies_that_are_none(client, body):
    response = await client.post("/orders/_find", data=b'{"selector":{}}')
    assert (await body(response, 415))["error"] == "bad_content_type"
    headers = {"Content-Type": "application/json"}
    for data in (b"{", b"[]", b'{"selector":' * 20_000):
        response = await client.post("/orders/_find", data=data, headers=headers)
        assert (await body(response, 400))["error"] == "bad_request"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConditionError("why", code="bucket_not_found"), 404),
        (UnavailableError("why", code="not_my_partition"), 503),
    ],
)
async def test_errors_of_the_node(client, body, open_node, error, status):
    open_node.scan.refusal = error
    await find(client, body, status)


async def test_rights(guarded, body, ada, bob):
    asked = {"json": {"selector": {}}}
    for path in ("/orders/_find", "/orders/_explain"):
        await body(await guarded.post(path, **asked), 401)
        await body(await guarded.post(path, headers=ada, **asked))


@pytest.mark.slow
async def test_a_pattern_on_a_large_text_does_not_hold_the_loop(client, body, open_node):
    text = "".join(random.Random(1).choices("ab", k=200_000))
    open_node.scan.texts = {"d": json.dumps({"_id": "d", "a": text}).encode()}
    loop, late_s, end = asyncio.get_running_loop(), [], asyncio.Event()

    async def watch():
        while not end.is_set():
            began_s = loop.time()
            await asyncio.sleep(0)
            late_s.append(loop.time() - began_s)

    watching = asyncio.ensure_future(watch())
    before_s = loop.time()
    found = await find(client, body, selector={"a": {"$regex": "[ab]*a[ab]{900}c"}})
    taken_s = loop.time() - before_s
    end.set()
    await watching
    assert found["docs"] == []
    loop_lag_ms = 1000 * max(late_s)
    assert loop_lag_ms < 500 * taken_s, "half of the time at the very most"
