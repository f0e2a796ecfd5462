"""Pages about the node itself: welcome, health, addresses, metrics.

Elsewhere: buckets (`bucket_pages`), users (`user_pages`), log-in (`session_pages`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from millstream.errors import AccessError
from millstream.gateway.aio.answers import NODE_API, USER, answer, require
from millstream.gateway.core.api.node import NodeApi
from millstream.kv.core.statistics import BUCKET_FIGURES, NODE_FIGURES, Figure, Histogram
from millstream.version import __version__

__all__ = ["routes"]


async def _welcome(request: web.Request) -> web.Response:
    return answer(
        {
            "couchdb": "Welcome",
            "version": __version__,
            "uuid": request.app[NODE_API].uuid,
            "vendor": {"name": "Millstream", "version": __version__},
            "features": [],
        }
    )


async def _up(request: web.Request) -> web.Response:
    """Report whether the node serves all its buckets. Clients without login get no names."""
    api = request.app[NODE_API]
    failed = [status.name for status in api.bucket_statuses() if status.state == "failed"]
    if not failed:
        return answer({"status": "ok"})
    found: dict[str, Any] = {"status": "failed_buckets", "buckets_failed": len(failed)}
    if api.users.is_empty or request[USER] is not None:
        found["failed_buckets"] = failed
    return answer(found, status=503)


async def _node(request: web.Request) -> web.Response:
    """Tell which node this is, and its listeners.

    Right: any user.
    """
    api = request.app[NODE_API]
    if not api.users.is_empty and request[USER] is None:
        raise AccessError("log in first", code="unauthorized")
    buckets = api.bucket_statuses()
    engine, engines = api.engine
    several = {"engine": engine, "engines": engines} if engines > 1 else {}
    return answer(
        {
            **several,
            "uuid": api.uuid,
            "version": __version__,
            "listeners": api.addresses(),
            "buckets": len(buckets),
            "failed_buckets": [status.name for status in buckets if status.state == "failed"],
        }
    )


class _NodeCollector(Collector):
    """The node's figures in the form of the Prometheus library."""

    def __init__(self, api: NodeApi) -> None:
        self._api = api

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present value."""
        metrics = self._api.metrics()
        for name, value in metrics.node.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"millstream_{name}", NODE_FIGURES[name], value)
        for name, meaning in BUCKET_FIGURES.items():
            found = {b: f[name] for b, f in metrics.buckets.items() if name in f}
            if found:
                yield _bucket_family(name, meaning, found)


def _bucket_family(name: str, meaning: str, found: dict[str, Figure]) -> Metric:
    """Return one metric of all buckets."""
    full, example = f"millstream_{name}", next(iter(found.values()))
    if isinstance(example, Histogram):
        histogram = HistogramMetricFamily(full, meaning, labels=["bucket"])
        for bucket, value in found.items():
            assert isinstance(value, Histogram)
            histogram.add_metric([bucket], value.cumulated(), value.sum)
        return histogram
    by_status = isinstance(example, Mapping)
    labels = ["bucket", "status"] if by_status else ["bucket"]
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(full, meaning, labels=labels)
    for bucket, value in found.items():
        if isinstance(value, Mapping):
            for status, count in value.items():
                family.add_metric([bucket, status], count)
        else:
            assert not isinstance(value, Histogram)
            family.add_metric([bucket], value)
    return family


async def _metrics(request: web.Request) -> web.Response:
    require(request, "admin")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeCollector(request.app[NODE_API]))
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
