"""Pages about the node itself: welcome, health, addresses, metrics.

Elsewhere: buckets (`bucket_pages`), users (`user_pages`), log-in (`session_pages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NotRequired, TypedDict

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
from millstream.gateway.aio.answers import NODE_API, USER, answer, read_metrics, require
from millstream.gateway.aio.describing import gives
from millstream.gateway.aio.parsing import beside
from millstream.gateway.core.api.node import NodeMetrics
from millstream.kv.core.statistics import BUCKET_FIGURES, NODE_FIGURES, Figure, Histogram
from millstream.runtime.pace import Turns
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


class NodeTold(TypedDict):
    """A node; `engine` and `engines` only if it has several."""

    uuid: str
    version: str
    listeners: dict[str, str | None]
    buckets: int
    failed_buckets: list[str]
    engine: NotRequired[int]
    engines: NotRequired[int]


@gives(NodeTold)
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


class _Collected(Collector):
    """Metrics in the form of the Prometheus library."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return every metric with its value."""
        return self._metrics


def _families(metrics: NodeMetrics) -> Iterator[Metric]:
    """Yield every metric with its present value."""
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
    registry, families, turns = CollectorRegistry(auto_describe=False), list[Metric](), Turns()
    for family in _families(await read_metrics(request.app[NODE_API])):
        families.append(family)
        await turns.give()
    registry.register(_Collected(families))
    return web.Response(
        body=await beside(generate_latest, registry),
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
