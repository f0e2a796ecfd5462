"""`_changes` over HTTP."""

import asyncio
import json
import threading

import pytest

from millstream.access.users import UserStore
from millstream.gateway.aio.documents import changes_pages
from millstream.gateway.aio.parsing import QUICK_BODY_BYTES_MAX
from millstream.gateway.core.changes import parse_changes

URL = "/orders/_changes"


@pytest.fixture
def bucket(open_node):
    return open_node.changing


async def lines(response, count):
    async with asyncio.timeout(60):
        return [await response.content.readline() for _ in range(count)]


def _is_read(bucket):
    return len(bucket.changes) or any(p.readers or p.holds for p in bucket.partitions)


async def gone(bucket):
    """Until nobody reads any more."""
    async with asyncio.timeout(60):
        while _is_read(bucket):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)


async def test_a_normal_feed_has_a_row_a_line(client, bucket):
    bucket.write(0, "abA")
    bucket.write(1, "c")
    text = await (await client.get(URL)).text()
    found = text.split("\n")
    assert found[0] == '{"results":['
    assert found[1].startswith('{"seq":"1-')
    assert found[1].endswith(",")
    assert not found[3].endswith(",")
    assert found[4] == "],"
    assert found[5].startswith('"last_seq":"4-')
    assert found[5].endswith('","pending":0}')
    assert found[6:] == [""]
    rows = json.loads(text)["results"]
    assert [(row["id"], row.get("deleted")) for row in rows] == [
        ("c", None), ("b", None), ("a", True),
    ]  # fmt: skip
    await gone(bucket)


async def test_nothing_is_an_empty_list(client, body):
    assert await (await client.get(URL + "?since=now")).text() == (
        '{"results":[\n\n],\n"last_seq":"0-AZUECmMCAAAAAAAAAAAAAAAAAA","pending":0}\n'
    ).replace("0-AZUECmMCAAAAAAAAAAAAAAAAAA", (await body(await client.get(URL)))["last_seq"])


async def test_batches_go_on_from_each_other_and_say_what_is_pending(client, bucket, body):
    bucket.write(0, "abcab")
    bucket.write(1, "defg")
    since, seen, pending = "0", [], []
    for _ in range(4):
        found = await body(await client.get(URL, params={"since": since, "limit": "2"}))
        seen += [row["id"] for row in found["results"]]
        since = found["last_seq"]
        pending.append(found["pending"])
    assert sorted(seen) == list("abcdefg")
    assert pending == [5, 3, 1, 0]
    found = await body(await client.get(URL, params={"since": "0", "limit": "0"}))
    assert (found["results"], found["pending"], found["last_seq"][:2]) == ([], 7, "0-")


async def test_a_large_rest_is_counted_by_its_seqnos(client, bucket, body, monkeypatch):
    monkeypatch.setattr(changes_pages, "COUNTED_CHANGES_MAX", 1)
    bucket.write(0, "aaabc")
    assert (await body(await client.get(URL + "?limit=0")))["pending"] == 5


async def test_rows_go_in_steps(client, bucket, body, monkeypatch):
    monkeypatch.setattr(changes_pages, "ROWS_PER_STEP", 2)
    bucket.write(0, "abcdefg")
    bucket.partitions[0].chunk_items = 5
    bucket.partitions[0].forget_memory(6)
    found = await body(await client.get(URL))
    assert [row["id"] for row in found["results"]] == list("abcdefg")
    assert found["last_seq"] == found["results"][-1]["seq"]


async def test_a_feed_that_is_filtered_gives_way_after_each_document(
    client, bucket, body, monkeypatch
):
    given = []

    class Counted(changes_pages.Turns):
        async def give(self):
            given.append(self)
            await super().give()

    monkeypatch.setattr(changes_pages, "Turns", Counted)
    bucket.write(0, "abcdefg")
    bucket.flush()
    selector = {"json": {"selector": {"_id": {"$gt": "b"}}}}
    found = await body(await client.post(URL + "?filter=_selector", **selector))
    assert [row["id"] for row in found["results"]] == list("cdefg")
    assert len(given) >= 7


async def test_descending_is_the_same_in_reverse(client, bucket, body, monkeypatch):
    bucket.write(0, "abc")
    forth = (await body(await client.get(URL)))["results"]
    back = (await body(await client.get(URL + "?descending=true")))["results"]
    assert back == forth[::-1]
    found = await body(await client.get(URL + "?descending=true&limit=2"))
    assert found["results"] == forth[:0:-1]
    monkeypatch.setattr(changes_pages, "DESCENDING_BYTES_MAX", 10)
    await body(await client.get(URL + "?descending=true"), 400)


async def test_only_some_rows_have_a_seq(client, bucket, body):
    bucket.write(0, "abc")
    found = await body(await client.get(URL + "?seq_interval=2"))
    assert [row["seq"] is None for row in found["results"]] == [False, True, False]


async def test_a_long_poll_waits_for_one_change(client, bucket, body):
    asking = asyncio.ensure_future(client.get(URL + "?feed=longpoll&since=now"))
    await bucket.until_read()
    bucket.write(1, "x")
    found = json.loads(await (await asking).text())
    assert [row["id"] for row in found["results"]] == ["x"]
    found = await body(await client.get(URL + "?feed=longpoll"))
    assert len(found["results"]) == 1
    last = found["last_seq"]
    found = await body(await client.get(f"{URL}?feed=longpoll&since={last}&timeout=1"))
    assert found == {"results": [], "last_seq": last, "pending": 0}
    await gone(bucket)


async def test_a_continuous_feed_goes_on(client, bucket):
    bucket.write(0, "a")
    response = await client.get(URL + "?feed=continuous&heartbeat=60000")
    (first,) = await lines(response, 1)
    bucket.write(1, "b")
    (second,) = await lines(response, 1)
    assert [json.loads(line)["id"] for line in (first, second)] == ["a", "b"]
    response.close()
    await gone(bucket)


async def test_a_continuous_feed_ends_with_its_time(client, bucket):
    bucket.write(0, "a")
    response = await client.get(URL + "?feed=continuous&timeout=1")
    row, last = (await response.text()).splitlines()
    assert json.loads(last) == {"last_seq": json.loads(row)["seq"], "pending": 0}
    text = await (await client.get(URL + "?feed=continuous&limit=1")).text()
    assert json.loads(text.splitlines()[1])["pending"] == 0


@pytest.mark.parametrize(
    ("feed", "beat"),
    [
        ("continuous", [b"\n", b"\n"]),
        ("longpoll", [b'{"results":[\n', b"\n", b"\n"]),
        ("eventsource", [b"event: heartbeat\n", b"data: \n", b"\n"]),
    ],
)
async def test_heartbeats_come_while_nothing_does(client, bucket, feed, beat):
    response = await client.get(f"{URL}?feed={feed}&heartbeat=1&since=now")
    assert await lines(response, len(beat)) == beat
    response.close()
    await gone(bucket)


async def test_an_event_source(client, bucket):
    bucket.write(0, "ab")
    response = await client.get(URL + "?feed=eventsource&timeout=1")
    assert response.content_type == "text/event-stream"
    found = (await response.text()).split("\n")
    row = json.loads(found[0].removeprefix("data: "))
    assert found[1:3] == ["id: " + row["seq"], ""]
    again = await client.get(
        URL + "?feed=eventsource&timeout=1", headers={"Last-Event-ID": row["seq"]}
    )
    assert (await again.text()).split("\n") == found[3:]


async def test_a_selector_meets_numbers_of_any_size(client, bucket, body):
    bucket.partitions[1].put(b"large", b'{"n":%b}' % (b"9" * 5000))
    bucket.flush()
    for selector, ids in (({"n": {"$gt": 1}}, ["large"]), ({"n": 1}, [])):
        asked = {"json": {"selector": selector}}
        found = await body(await client.post(URL + "?filter=_selector", **asked))
        assert [row["id"] for row in found["results"]] == ids


async def test_some_ids_and_design_documents(client, bucket, body):
    bucket.write(0, "abc")
    bucket.partitions[1].put(b"_design/d", b"{}")
    bucket.flush()
    asked = {"json": {"doc_ids": ["a", "x"]}}
    found = await body(await client.post(URL + "?filter=_doc_ids", **asked))
    assert [row["id"] for row in found["results"]] == ["a"]
    assert found["last_seq"].startswith("4-")
    found = await body(await client.get(URL + "?filter=_design"))
    assert [row["id"] for row in found["results"]] == ["_design/d"]


async def test_what_is_refused(client, body):
    for query in ("since=x", "feed=x", "filter=_view", "since=3-AQAAAAECAAAA"):
        await body(await client.get(f"{URL}?{query}"), 400)
    await body(await client.post(URL, data=b"[]", headers={"Content-Type": "text/plain"}), 415)
    await body(await client.post(URL, json=[]), 400)
    answer = await client.post(URL, data=b"{", headers={"Content-Type": "application/json"})
    await body(answer, 400)
    assert (await body(await client.post(URL)))["results"] == []
    assert (await body(await client.get("/none/_changes"), 404))["error"] == "not_found"


async def test_a_database_that_goes_away_cuts_its_feeds(client, bucket):
    response = await client.get(URL + "?feed=continuous&heartbeat=60000")
    await bucket.until_read()
    bucket.changes.drop()
    with pytest.raises(Exception, match="payload"):
        await response.read()
    await gone(bucket)


async def test_documents_with_what_is_attached(client, bucket, body):
    """One row at a time; what kv wrote that is no document is an attachment as well."""
    bucket.write(0, "ab")
    bucket.write(1, "c")
    url = URL + "?include_docs=true"
    plain = (await body(await client.get(url)))["results"]
    for option in ("attachments", "att_encoding_info"):
        found = await body(await client.get(f"{url}&{option}=true&conflicts=true"))
        assert [row["id"] for row in found["results"]] == [row["id"] for row in plain]
        assert [row["doc"].keys() for row in found["results"]] == [
            row["doc"].keys() for row in plain
        ]
    limited = await body(await client.get(url + "&attachments=true&limit=2"))
    assert (len(limited["results"]), limited["pending"]) == (2, 1)
    await gone(bucket)


async def test_readers_need_the_right(guarded, bob, cleo, body):
    await body(await guarded.get(URL), 401)
    await body(await guarded.get(URL, headers=cleo), 403)
    await body(await guarded.get(URL, headers=bob))


@pytest.mark.parametrize("feed", ["continuous", "longpoll", "eventsource"])
async def test_a_feed_ends_with_the_user_who_reads_it(guarded, guarded_node, ada, feed):
    users = guarded_node.users = UserStore()
    users.put("ada", "secret", ["admin"])
    users.put("eve", "secret", ["admin"])
    response = await guarded.get(f"{URL}?feed={feed}&heartbeat=1&since=now", headers=ada)
    await lines(response, 3)
    users.change("ada", rights=["read:orders"])
    async with asyncio.timeout(60):
        rest = await response.read()
    assert feed == "eventsource" or b'"last_seq":"0-' in rest
    await gone(guarded_node.changing)


async def test_a_feed_ends_with_its_token(bearing, guarded_node, bearer, token_clock):
    headers = bearer("read:orders")
    response = await bearing.get(f"{URL}?feed=continuous&heartbeat=1&since=now", headers=headers)
    await lines(response, 2)
    token_clock[0] += 3600
    async with asyncio.timeout(60):
        assert b'"last_seq":"0-' in await response.read()
    assert (await bearing.get(URL, headers=headers)).status == 401


async def test_a_feed_ends_with_its_cookie(guarded, guarded_node, body):
    users = guarded_node.users = UserStore()
    users.put("ada", "secret", ["admin"])
    log_in = {"name": "ada", "password": "secret"}
    response = await guarded.post("/_session", json=log_in)
    cookie = {"Cookie": f"AuthSession={response.cookies['AuthSession'].value}"}
    url = f"{URL}?feed=continuous&heartbeat=1&since=now"
    response = await guarded.get(url, headers=cookie)
    await lines(response, 2)
    users.change("ada", password="other")
    async with asyncio.timeout(60):
        assert b'"last_seq":"0-' in await response.read()


async def test_a_feed_of_nobody_ends_once_there_are_users(client, open_node):
    response = await client.get(f"{URL}?feed=continuous&heartbeat=1&since=now")
    await lines(response, 2)
    open_node.users.put("ada", "secret", ["admin"])
    async with asyncio.timeout(60):
        assert b'"last_seq":"0-' in await response.read()


async def test_only_long_requests_are_understood_in_the_thread(client, bucket, monkeypatch):
    threads = []

    def noted(*arguments):
        threads.append(threading.current_thread() is threading.main_thread())
        return parse_changes(*arguments)

    monkeypatch.setattr(changes_pages, "parse_changes", noted)
    await client.get(URL)
    await client.post(URL, json={"doc_ids": ["a"]})
    await client.post(URL, json={"doc_ids": ["a" * QUICK_BODY_BYTES_MAX]})
    assert threads == [True, True, False]
