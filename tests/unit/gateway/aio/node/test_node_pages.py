import threading

from millstream import __version__
from millstream.gateway.aio.answers import NODE_API
from millstream.gateway.aio.node import node_pages
from millstream.gateway.core.api.node import BucketStatus


async def test_welcome_and_health(client, body):
    welcome = await body(await client.get("/"))
    assert welcome["couchdb"] == "Welcome"
    assert welcome["version"] == __version__
    assert welcome["uuid"] == "f" * 32
    assert welcome["vendor"]["name"] == "Millstream"
    assert await body(await client.get("/_up")) == {"status": "ok"}
    node = await body(await client.get("/_millstream/node"))
    assert node["listeners"] == {"kv": "127.0.0.1:1", "http": "127.0.0.1:2", "coord": None}


async def test_one_of_several_engines_says_which_it_is(client, body, monkeypatch):
    assert "engine" not in await body(await client.get("/_millstream/node"))
    monkeypatch.setattr(type(client.app[NODE_API]), "engine", (2, 3))
    node = await body(await client.get("/_millstream/node"))
    assert (node["engine"], node["engines"]) == (2, 3)


async def test_up_tells_of_failed_buckets(client, guarded, body, monkeypatch):
    def statuses(_):
        return [BucketStatus(n, "0" * 32, 1, "", s) for n, s in (("a", "ready"), ("b", "failed"))]

    monkeypatch.setattr(type(client.app[NODE_API]), "bucket_statuses", statuses)
    wanted = {"status": "failed_buckets", "buckets_failed": 1, "failed_buckets": ["b"]}
    assert await body(await client.get("/_up"), 503) == wanted
    del wanted["failed_buckets"]
    assert await body(await guarded.get("/_up"), 503) == wanted, "strangers learn no names"


async def test_metrics_are_text_for_prometheus(client):
    response = await client.get("/_metrics")
    text = await response.text()
    assert response.content_type == "text/plain"
    assert "millstream_loop_lag_ms 0.5" in text
    for line in (
        "# HELP millstream_loop_lag_ms By how much the event loop was late, latest measurement",
        "millstream_processor_seconds_total 7.0",
        'millstream_changes_high{bucket="orders"} 9.0',
        "# TYPE millstream_flusher_commits_total counter",
        'millstream_flusher_commits_total{bucket="orders"} 1.0',
        "# TYPE millstream_flusher_commit_changes histogram",
        'millstream_flusher_commit_changes_bucket{bucket="orders",le="1"} 0.0',
        'millstream_flusher_commit_changes_bucket{bucket="orders",le="+Inf"} 1.0',
        'millstream_flusher_commit_changes_sum{bucket="orders"} 3.0',
        'millstream_refused_total{bucket="orders",status="locked"} 2.0',
    ):
        assert line in text.splitlines()


async def test_the_text_of_metrics_which_grows_with_buckets_is_made_beside_the_loop(
    client, monkeypatch
):
    make, threads = node_pages.generate_latest, []

    def made(registry):
        threads.append(threading.current_thread())
        return make(registry)

    monkeypatch.setattr(node_pages, "generate_latest", made)
    assert (await client.get("/_metrics")).status == 200
    assert threading.current_thread() not in threads
