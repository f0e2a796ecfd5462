from millstream.model.position import Position
from millstream.upr.core import consumer, events


def test_readers_find_all_events_where_the_consumer_is() -> None:
    for name in events.__all__:
        assert getattr(consumer, name) is getattr(events, name)
        assert name in consumer.__all__


def test_what_a_server_of_another_kind_does_not_say() -> None:
    assert events.StreamOpened(1, Position(), ()).source_high is None
    assert events.RollbackRequired(1, 7).branch == 0
    assert events.ChangesReceived(1, Position(), [b"frame"]).sides == ()
