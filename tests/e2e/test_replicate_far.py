"""Replication with nodes that are encrypted, and through proxies."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support.http import http_calls
from support.http.proxy_double import ProxyDouble
from support.node.node_process import NodeProcess
from support.node.waiting import until

TLS = Path(__file__).parent / "tls"
AUTHORITY = str(TLS / "authority.pem")
SECRET = "hushhush"


@pytest.fixture
async def proxy() -> AsyncIterator[ProxyDouble]:
    async with ProxyDouble(f"you:{SECRET}") as proxy:
        yield proxy


def call(url: str, method: str, body: Any = None) -> tuple[int, Any]:
    trust = ssl.create_default_context(cafile=AUTHORITY)
    return http_calls.call(url, method, "", body, tls=trust if url.startswith("https:") else None)


async def done(url: str, method: str, body: Any = None) -> Any:
    status, answer = await asyncio.to_thread(call, url, method, body)
    assert status < 300, answer
    return answer


async def test_jobs_reach_encrypted_nodes_and_pass_through_proxies(
    make_node: Callable[..., NodeProcess], proxy: ProxyDouble
) -> None:
    a = make_node("--no-memcached", "--tls-cert", str(TLS / "node.pem"), name="a").start()
    b = make_node(
        "--no-memcached", "--tls-ca", AUTHORITY, "--log-level", "debug", name="b"
    ).start()
    far = a.http.replace("http:", "https:")
    for place in (f"{far}/notes?q=4", f"{b.http}/notes?q=4"):
        await done(place, "PUT")
    for n in range(20):
        await done(f"{far}/notes/d{n}", "PUT", {"n": n})
    way = proxy.url(f"you:{SECRET}")
    job = {"source": f"{far}/notes", "target": "notes"}
    answer = await done(f"{b.http}/_replicate", "POST", {**job, "proxy": way})
    assert answer["history"][0]["docs_written"] == 20
    assert set(proxy.tunnels) == {
        far.removeprefix("https://")
    }  # its own database it reaches itself
    assert proxy.requests == []

    wrong = {**job, "source_proxy": proxy.url("you:hushwrong")}
    status, refused = await asyncio.to_thread(call, f"{b.http}/_replicate", "POST", wrong)
    assert (status, refused["error"]) == (401, "unauthorized")
    await done(f"{b.http}/_replicator/r", "PUT", {**job, "continuous": True, "proxy": way})
    await done(f"{b.http}/_replicator/w", "PUT", {**wrong, "selector": {}, "target": "other"})
    pages = "_scheduler/docs", "_scheduler/jobs", "_active_tasks"

    def told() -> str:
        return json.dumps([call(f"{b.http}/{page}", "GET") for page in pages])

    await asyncio.to_thread(until, lambda: '"running"' in told() and '"crashing"' in told(), told)
    assert "hush" not in told() + json.dumps(refused) + b.log()

    # the encrypted node reaches itself, and replicates in the other direction through the proxy
    await done(
        f"{far}/_replicate", "POST", {"source": "notes", "target": "copy", "create_target": True}
    )
    plain = f"{b.http}/back"
    push = {"source": "copy", "target": plain, "create_target": True, "target_proxy": way}
    answer = await done(f"{far}/_replicate", "POST", push)
    assert answer["history"][0]["docs_written"] == 20
    assert all(line.split()[1].startswith(b.http) for line in proxy.requests)
    assert proxy.requests


async def test_who_is_not_trusted_is_not_asked(make_node: Callable[..., NodeProcess]) -> None:
    a = make_node("--no-memcached", "--tls-cert", str(TLS / "node.pem"), name="a").start()
    b = make_node("--no-memcached", name="b").start()
    job = {"source": a.http.replace("http:", "https:") + "/x", "target": "x"}
    status, answer = await asyncio.to_thread(call, f"{b.http}/_replicate", "POST", job)
    assert (status, answer["error"]) == (503, "unreachable")
    assert "certificate verify failed" in answer["reason"]
