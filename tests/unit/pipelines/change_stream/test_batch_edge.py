"""How queries end, against one that is none; real ones are in tests/pipelines."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread, Timer
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

from millstream.errors import UnavailableError
from millstream.pipelines.change_stream import batch_edge
from millstream.pipelines.change_stream.batch_edge import BatchGate


class FalseQuery:
    """A streaming query that runs `batches` batches and ends; one that fails ends it."""

    def __init__(self, take: Callable[[Any, int], None], batches: int) -> None:
        self.take, self.left, self.done = take, batches, 0
        self.is_stopped = False

    def awaitTermination(self, timeout: float) -> bool:
        if not self.left:
            return True
        try:
            self.take("frame", self.done)
        except Exception as error:
            raise StreamingQueryException(str(error)) from error
        self.left, self.done = self.left - 1, self.done + 1
        return False

    def stop(self) -> None:
        self.is_stopped = True


def test_a_query_runs_to_its_end() -> None:
    applied: list[int] = []
    woken: list[int] = []
    gate = BatchGate(lambda _, number: applied.append(number), lambda: False)
    query: Any = FalseQuery(gate.take, 3)
    gate.wait(query, lambda query: woken.append(query.done))
    assert applied == [0, 1, 2]
    assert woken == [1, 2, 3, 3]
    assert query.is_stopped


def test_a_stop_waits_for_the_current_batch_and_starts_no_other() -> None:
    """Though the stream brings one batch after the other."""
    applied: list[int] = []
    has_begun, may_end = Event(), Event()

    def apply(_: Any, number: int) -> None:
        has_begun.set()
        assert may_end.wait(60)
        applied.append(number)

    gate = BatchGate(apply, lambda: True)
    batch = Thread(target=gate.take, args=("frame", 0))

    class BusyQuery(FalseQuery):
        def awaitTermination(self, timeout: float) -> bool:
            batch.start()
            assert has_begun.wait(60)
            Timer(0.05, may_end.set).start()
            return False

    query: Any = BusyQuery(gate.take, 0)
    gate.wait(query)
    assert applied == [0]
    assert query.is_stopped
    with pytest.raises(UnavailableError, match="being stopped"):
        gate.take(query, 1)
    batch.join()


def test_a_batch_that_takes_too_long_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_edge, "STOP_WAIT_S", 0.01)
    monkeypatch.setattr(FalseQuery, "awaitTermination", lambda *_: False)
    gate = BatchGate(lambda *_: None, lambda: True)
    query: Any = FalseQuery(gate.take, 9)
    with gate._in_batch:
        gate.wait(query)
    assert query.is_stopped


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError("no disk", code="mine"), "mine"),
        (ZeroDivisionError("odd"), "query_failed"),
    ],
)
def test_a_failed_batch_is_reported_with_its_error(error: Exception, code: str) -> None:
    def fails(*_: object) -> None:
        raise error

    gate = BatchGate(fails, lambda: False)
    query: Any = FalseQuery(gate.take, 1)
    with pytest.raises(UnavailableError) as failed:
        gate.wait(query)
    assert failed.value.code == code
    assert query.is_stopped


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError("no disk", code="mine"), "mine"),
        (OSError(28, "No space left on device"), "query_failed"),
    ],
)
def test_a_batch_that_fails_during_a_stop_is_reported(error: Exception, code: str) -> None:
    has_begun, may_end = Event(), Event()

    def fails(*_: object) -> None:
        has_begun.set()
        assert may_end.wait(60)
        raise error

    gate = BatchGate(fails, lambda: True)

    def take() -> None:
        with pytest.raises(type(error)):
            gate.take("frame", 0)  # type: ignore[arg-type]

    batch = Thread(target=take)

    class BusyQuery(FalseQuery):
        def awaitTermination(self, timeout: float) -> bool:
            batch.start()
            assert has_begun.wait(60)
            Timer(0.05, may_end.set).start()
            return False

    query: Any = BusyQuery(gate.take, 0)
    with pytest.raises(UnavailableError, match=str(error.args[-1])) as failed:
        gate.wait(query)
    batch.join()
    assert failed.value.code == code
    assert query.is_stopped


def test_a_killed_java_is_reported_in_words() -> None:
    class DeadQuery(FalseQuery):
        def awaitTermination(self, timeout: float) -> bool:
            raise Py4JNetworkError("Answer from Java side is empty")

        def stop(self) -> None:
            raise Py4JNetworkError("cannot connect to the Java server")

    gate = BatchGate(lambda *_: None, lambda: False)
    query: Any = DeadQuery(gate.take, 1)
    with pytest.raises(UnavailableError, match="Answer from Java side is empty") as failed:
        gate.wait(query)
    assert failed.value.code == "query_failed"
