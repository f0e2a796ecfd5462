"""The design documents of the demonstration."""

from __future__ import annotations

from millstream.demo.views import DESIGNS
from millstream.views.aio.sandbox.mapping import open_mapper
from millstream.views.core.design.design_documents import parse_design


def emitted(name, document):
    mapper = open_mapper(parse_design(DESIGNS[name]))
    try:
        (mapped,) = mapper.map([document])
    finally:
        mapper.close()
    assert not mapped.errors
    return [(view, bytes(key).decode(), bytes(value).decode()) for view, key, value in mapped.rows]


LANDED = b'{"carrier":"AA","origin":"JFK","dest":"BOS","month":7,"hour":9,"arr_delay":-5}'
SCHEDULED = b'{"carrier":"AA","origin":"JFK","dest":"BOS","month":7,"hour":9}'


def test_what_a_flight_emits():
    assert emitted("flights", LANDED) == [(0, '"AA"', "-5"), (1, '["JFK",9]', "null")]
    assert emitted("routes", LANDED) == [(0, '[7,"JFK","BOS"]', "-5")]


def test_a_flight_without_a_delay_is_in_no_view_of_delays():
    assert emitted("flights", SCHEDULED) == [(1, '["JFK",9]', "null")]
    assert emitted("routes", SCHEDULED) == []
