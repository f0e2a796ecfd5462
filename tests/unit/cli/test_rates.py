"""Rates out of two readings."""

from __future__ import annotations

from typing import Any

from millstream.cli.rates import bucket_rates, processor_share, rate

FIGURES = {
    "changes_high": 10, "changes_unflushed": 1, "reading_back_in_loop_total": 4,
    "reading_back_by_threads_total": 2, "readers_streams": 3, "readers_sent_bytes_total": 100,
    "readers_lag": 7, "index_indexes": 1, "index_pending": 5, "memory_used_bytes": 50,
    "memory_quota_bytes": 200,
}  # fmt: skip


def reading(**figures: Any) -> dict[str, Any]:
    bucket = {"name": "b", "uuid": "u", "state": "ready", "figures": {**FIGURES, **figures}}
    return {"buckets": [bucket], "processor_seconds_total": 1.5}


def test_a_rate_is_what_counters_grew_by_in_a_second() -> None:
    assert rate({"a": 1, "b": 2}, {"a": 5, "b": 4}, 2.0, "a") == 2
    assert rate({"a": 1, "b": 2}, {"a": 5, "b": 4}, 2.0, "a", "b") == 3
    assert processor_share(reading(), {"processor_seconds_total": 2.0}, 2.0) == 0.25


def test_what_is_not_known_is_none() -> None:
    assert rate({}, {"a": 5}, 1.0, "a") is None
    assert rate({"a": 1}, {}, 1.0, "a") is None
    assert rate({"a": 5}, {"a": 1}, 1.0, "a") is None
    assert rate({"a": 1}, {"a": 5}, 0.0, "a") is None


def test_a_bucket_shows_its_rates_and_what_there_is() -> None:
    now = reading(changes_high=30, reading_back_by_threads_total=8, readers_sent_bytes_total=300)
    (found,) = bucket_rates(reading(), now, 2.0)
    assert found == ("b", "ready", 10.0, 1, 3.0, 3, 100.0, 7, 1, 5, 50, 200)


def test_a_bucket_that_is_new_made_anew_or_not_shown_has_no_rates() -> None:
    for before in ({}, {"buckets": [{**reading()["buckets"][0], "uuid": "other"}]}):
        (found,) = bucket_rates(before, reading(), 1.0)
        assert (found.writes, found.sent_bytes, found.lag) == (None, None, 7)
    hidden = {"buckets": [{"name": "b", "uuid": "u", "state": "failed"}]}
    (found,) = bucket_rates(reading(), hidden, 1.0)
    assert found == ("b", "failed", *[None] * 10)
