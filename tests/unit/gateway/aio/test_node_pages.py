from millstream import __version__


async def test_welcome_and_health(client, body):
    welcome = await body(await client.get("/"))
    assert welcome["couchdb"] == "Welcome"
    assert welcome["version"] == __version__
    assert welcome["uuid"] == "f" * 32
    assert welcome["vendor"]["name"] == "Millstream"
    assert await body(await client.get("/_up")) == {"status": "ok"}
    node = await body(await client.get("/_millstream/node"))
    assert node["listeners"] == {"kv": "127.0.0.1:1", "http": "127.0.0.1:2", "coord": None}


async def test_metrics_are_text_for_prometheus(client):
    response = await client.get("/_metrics")
    text = await response.text()
    assert response.content_type == "text/plain"
    assert "millstream_loop_lag_ms 0.5" in text
    assert "millstream_accepted_total 7.0" in text
    assert 'millstream_high_seqno{bucket="orders"} 9.0' in text
