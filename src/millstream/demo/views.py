"""The views of the demonstration: two in JavaScript, one in Python.

    flights/delay_by_carrier    statistics of arrival delays by carrier
    flights/flights_by_hour     number of flights by origin and scheduled local hour
    routes/delay_by_route       statistics of arrival delays by local month and route

A cancelled flight is deleted, so it is in no view; a flight without an arrival delay is in none
of the views of delays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millstream.views import register

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DESIGNS", "delay_by_route"]

DESIGNS: Final[dict[str, dict[str, Any]]] = {
    "flights": {
        "_id": "_design/flights",
        "language": "javascript",
        "engine": "spark",
        "views": {
            "delay_by_carrier": {
                "map": "function (doc) {\n"
                "  if (typeof doc.arr_delay === 'number') emit(doc.carrier, doc.arr_delay);\n"
                "}",
                "reduce": "_stats",
            },
            "flights_by_hour": {
                "map": "function (doc) {\n  emit([doc.origin, doc.hour], null);\n}",
                "reduce": "_count",
            },
        },
    },
    "routes": {
        "_id": "_design/routes",
        "language": "python",
        "engine": "spark",
        "views": {
            "delay_by_route": {"map": "registered:demo.delay_by_route", "reduce": "_stats"},
        },
    },
}


@register("demo.delay_by_route")
def delay_by_route(document: dict[str, Any]) -> Iterator[tuple[list[Any], int]]:
    """Emit the arrival delay of a flight under month, origin and destination."""
    delay = document.get("arr_delay")
    if delay is not None:
        yield [document["month"], document["origin"], document["dest"]], delay
