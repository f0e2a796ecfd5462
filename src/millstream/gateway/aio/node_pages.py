"""Pages about the node itself: welcome, health, addresses, metrics.

Elsewhere: buckets (`bucket_pages`), users (`user_pages`), log-in (`session_pages`).
"""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millstream.errors import AccessError
from millstream.gateway.aio.answers import HOST, USER, answer, require
from millstream.gateway.core.host import NodeHost
from millstream.version import __version__

__all__ = ["routes"]


async def _welcome(request: web.Request) -> web.Response:
    return answer(
        {
            "couchdb": "Welcome",
            "version": __version__,
            "uuid": request.app[HOST].uuid,
            "vendor": {"name": "Millstream", "version": __version__},
            "features": [],
        }
    )


async def _up(_: web.Request) -> web.Response:
    return answer({"status": "ok"})


async def _node(request: web.Request) -> web.Response:
    host = request.app[HOST]
    if not host.users.is_empty and request[USER] is None:
        raise AccessError("log in first", code="unauthorized")
    buckets = host.bucket_statuses()
    return answer(
        {
            "uuid": host.uuid,
            "version": __version__,
            "listeners": host.addresses(),
            "buckets": len(buckets),
            "failed_buckets": [status.name for status in buckets if status.state == "failed"],
        }
    )


class _NodeCollector(Collector):
    """The node's figures in the form of the Prometheus library."""

    def __init__(self, host: NodeHost) -> None:
        self._host = host

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present value."""
        metrics = self._host.metrics()
        for name, value in metrics.gauges.items():
            yield GaugeMetricFamily(f"millstream_{name}", _words(name), value)
        for name, value in metrics.counters.items():
            yield CounterMetricFamily(f"millstream_{name}", _words(name), value)
        for name, values in metrics.bucket_gauges.items():
            family = GaugeMetricFamily(f"millstream_{name}", _words(name), labels=["bucket"])
            for bucket, value in values.items():
                family.add_metric([bucket], value)
            yield family


def _words(name: str) -> str:
    return name.replace("_", " ")


async def _metrics(request: web.Request) -> web.Response:
    require(request, "admin")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeCollector(request.app[HOST]))
    return web.Response(
        body=generate_latest(registry),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get("/", _welcome),
        web.get("/_up", _up),
        web.get("/_metrics", _metrics),
        web.get("/_millstream/node", _node),
    ]
