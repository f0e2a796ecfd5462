"""Pages of a source that cannot answer for all of its changes."""

import pytest

from millstream.errors import (
    AccessError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.replication.core.asking import TOO_LARGE, Changes, Feed, Page, Pause, ReadInfo, Row
from millstream.replication.core.places import Place
from millstream.replication.core.reading import (
    UNREADABLE,
    UNREADABLE_MAX,
    WAIT_MIN_MS,
    WAIT_MS,
    Reader,
)
from millstream.replication.core.tasks import ATTEMPTS_MAX

FAILURES = [
    RemoteProtocolError("cut"), UnavailableError("502"), UsageError("large", code=TOO_LARGE),
    UnavailableError("slow", code="unreachable"), UnavailableError("?", code="timeout"),
]  # fmt: skip


class Source:
    """Has changes 1 to `count`; a request for one of `bad` fails, for one of `dead` always."""

    def __init__(self, count=20, bad=(), dead=(), error=FAILURES[0]):
        self.count, self.bad, self.dead, self.error = count, set(bad), set(dead), error
        self.asked, self.paused_ms, self.is_away = [], 0, False
        self.reader = Reader(8)

    def answer(self, request):
        if self.is_away:
            raise UnavailableError("away", code="unreachable")
        if isinstance(request, ReadInfo):
            return None
        self.asked.append(request)
        if request.wait_ms > 5000:
            raise UnavailableError("504")
        numbers = range(request.since + 1, min(request.since + request.limit, self.count) + 1)
        failing = self.bad | self.dead if request.feed.style == "all_docs" else self.dead
        if failing & set(numbers):
            raise self.error
        end = numbers[-1] if numbers else request.since
        return Page(tuple(Row(f"d{n}", ("1-a",)) for n in numbers), Place(end), self.count - end)

    def page(self, since=0, feed=Feed(), wait_ms=0):  # noqa: B008
        steps, answer = self.reader.page(Changes(since, 8, feed, wait_ms)), None
        step = next(steps)
        try:
            while True:
                try:
                    if isinstance(step, Pause):
                        self.paused_ms += step.wait_ms
                        answer = None
                    else:
                        answer = self.answer(step.request)
                except MillstreamError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    def all(self, feed=Feed(), rows=None):  # noqa: B008
        rows, since = [] if rows is None else rows, 0
        while not self.reader.is_at_end:
            page = self.page(since, feed)
            since = page.place.seq
            rows += page.rows
        return rows


@pytest.mark.parametrize("error", FAILURES)
def test_a_page_that_fails_is_asked_for_with_fewer_changes(error):
    source, right = Source(), Source().answer

    def refuse_large(request):
        if isinstance(request, Changes) and request.limit > 2:
            raise error
        return right(request)

    source.answer = refuse_large
    assert [row.name for row in source.all()] == [f"d{n}" for n in range(1, 21)]
    assert source.paused_ms > 0
    assert source.reader.trouble == ""


def test_a_source_that_never_answers_large_pages_is_seldom_asked_for_them():
    source = Source(count=1000)
    right = source.answer

    def refuse_large(request):
        if isinstance(request, Changes) and request.limit > 2:
            source.asked.append(request)
            raise UnavailableError("502")
        return right(request)

    source.answer = refuse_large
    assert len(source.all()) == 1000
    assert sum(request.limit > 2 for request in source.asked) < 20


def test_pages_grow_again():
    source = Source(count=60, bad=[3])
    source.page()
    source.bad = set()
    since = source.page(2).place.seq
    for _ in range(3):
        since = source.page(since).place.seq
    assert source.asked[-1].limit == 8


@pytest.mark.parametrize("error", FAILURES[:4])
def test_a_change_that_fails_alone_is_a_row_with_a_reason(error):
    rows = Source(bad=[7, 8], error=error).all()
    assert [row.name for row in rows] == [f"d{n}" for n in range(1, 21)]
    assert {row.name for row in rows if row.reason} == {"d7", "d8"}


@pytest.mark.parametrize("feed", [
    Feed(), Feed("main_only"), Feed(selector={"a": 1}), Feed(filter="d/f"), Feed(filter="_view"),
])  # fmt: skip
def test_a_change_that_cannot_be_named_stops_the_reader_at_its_sequence(feed):
    source, rows = Source(dead=[7]), []
    with pytest.raises(UnavailableError, match="behind sequence 6: cut") as failed:
        source.all(feed, rows)
    assert failed.value.code == UNREADABLE
    assert [row.name for row in rows] == [f"d{n}" for n in range(1, 7)]
    assert source.reader.trouble == "cut"


def test_a_filter_that_looks_inside_is_never_passed_by():
    source = Source(bad=[1])
    with pytest.raises(UnavailableError, match="behind sequence 0"):
        source.page(0, Feed(selector={"a": 1}))
    assert {request.feed.style for request in source.asked} == {"all_docs"}


def test_a_source_that_fails_for_each_change_is_at_fault():
    source = Source(bad=range(1, 21))
    with pytest.raises(UnavailableError, match=f"behind sequence {UNREADABLE_MAX}:"):
        source.all()


def test_a_source_that_is_away_is_asked_for_whole_pages():
    source = Source()
    source.is_away = True
    with pytest.raises(UnavailableError, match="away"):
        source.page()
    source.is_away = False
    assert len(source.page().rows) == 8


@pytest.mark.parametrize("error", [AccessError("no"), UsageError("no such filter")])
def test_what_smaller_pages_do_not_mend_is_raised_at_once(error):
    source = Source(bad=[1], error=error)
    with pytest.raises(type(error)):
        source.page()
    assert len(source.asked) == 1


def test_a_source_that_has_more_and_names_nothing_does_not_hold_a_run_for_ever():
    source = Source()
    right = source.answer
    source.answer = lambda request: (
        Page((), Place(0), 7) if isinstance(request, Changes) else right(request)
    )
    with pytest.raises(UnavailableError, match="names none of them"):
        source.page()


def test_a_wait_that_fails_is_made_shorter():
    source = Source(count=0)
    for _ in range(4):
        assert source.page(wait_ms=WAIT_MS).rows == ()
    waits = [request.wait_ms for request in source.asked]
    assert waits == [25_000, 0, 12_500, 0, 6_250, 0, 3_125]
    assert waits[-1] > WAIT_MIN_MS


def test_attempts_have_an_end():
    source = Source(dead=[1])
    with pytest.raises(UnavailableError):
        source.page()
    assert len(source.asked) == 3 + ATTEMPTS_MAX + 1
