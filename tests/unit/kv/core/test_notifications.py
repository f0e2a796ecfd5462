"""`kv.core.notifications`: who is told of changes."""

from __future__ import annotations

from support.kv.log_double import new_bucket


def test_subscribers_are_told_until_they_leave() -> None:
    bucket, told = new_bucket(), []

    def subscriber() -> None:
        told.append(1)

    bucket.subscribe(subscriber)
    bucket.changed()
    bucket.unsubscribe(subscriber)
    bucket.unsubscribe(subscriber)
    bucket.changed()
    assert told == [1]


def test_who_wants_durable_news_hears_of_nothing_else() -> None:
    bucket, told = new_bucket(), []

    def subscriber() -> None:
        told.append(1)

    bucket.subscribe_durable(subscriber)
    bucket.changed()
    assert told == []
    bucket.made_durable()
    bucket.unsubscribe(subscriber)
    bucket.made_durable()
    assert told == [1]
