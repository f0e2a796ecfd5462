"""Batches, answered by hand."""

import pytest

from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.replication.core import batches
from millstream.replication.core.asking import (
    TOO_LARGE,
    Copy,
    Diff,
    Difference,
    Document,
    Failure,
    Fetch,
    Fetched,
    Info,
    Pause,
    ReadInfo,
    Row,
    Write,
)
from millstream.replication.core.batches import MISSING, SUSPECTS_MAX, Batch
from millstream.replication.core.tasks import ATTEMPTS_MAX

ROWS = [Row("a", ("1-a",)), Row("b", ("1-b",)), Row("c", ("1-c",))]


class Sides:
    """Answers steps; `failures` by id is what a write, or a copy, gives."""

    def __init__(self):
        self.asked, self.known, self.gone, self.streamed = [], set(), set(), set()
        self.failures, self.documents_max, self.wanted_max = {}, 99, 99

    def answer(self, request):
        if isinstance(request, ReadInfo):
            return Info()
        if isinstance(request, Diff):
            return {n: Difference(r) for n, r in request.revs.items() if n not in self.known}
        if isinstance(request, Fetch):
            if len(request.wanted) > self.wanted_max:
                raise UsageError("too much", code=TOO_LARGE)
            found = [w for w in request.wanted if w.name not in self.gone]
            documents = (
                Document(w.name, r, b"x" * 9, w.name in self.streamed)
                for w in found
                for r in w.revs
            )
            missing = ((w.name, r) for w in request.wanted for r in w.revs if w not in found)
            return Fetched(tuple(documents), tuple(missing))
        if isinstance(request, Write):
            if len(request.documents) > self.documents_max:
                raise UsageError("too much", code=TOO_LARGE)
            names = [each.name for each in request.documents]
        else:
            assert isinstance(request, Copy)
            names = [request.wanted.name]
        return tuple(Failure(n, "1-" + n, self.failures[n].pop(0))
                     for n in names if self.failures.get(n))  # fmt: skip

    def run(self, rows=ROWS):
        steps, answer = Batch(rows).steps(), None
        step = next(steps)
        try:
            while True:
                self.asked.append(step if isinstance(step, Pause) else step.request)
                try:
                    answer = None if isinstance(step, Pause) else self.answer(step.request)
                except MillstreamError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    def of(self, kind):
        return [each for each in self.asked if isinstance(each, kind)]


@pytest.fixture
def sides():
    return Sides()


def test_what_is_missing_is_fetched_and_written(sides):
    sides.known = {"b"}
    done = sides.run()
    assert done.accepted == {"a", "b", "c"}
    assert done.failures == ()
    assert done.statistics[:5] == (3, 2, 2, 2, 0)
    assert [each.name for each in sides.of(Write)[0].documents] == ["a", "c"]


def test_no_rows_ask_nothing(sides):
    with pytest.raises(StopIteration):
        next(Batch([]).steps())


def test_a_refusal_is_one_of_its_document(sides):
    sides.failures = {"b": ["forbidden"]}
    done = sides.run()
    assert done.accepted == {"a", "c"}
    assert [each.name for each in done.failures] == ["b"]
    assert done.statistics.doc_write_failures == 1


def test_what_may_go_well_later_is_written_again(sides):
    sides.failures = {"b": ["timeout", "timeout"]}
    assert sides.run().accepted == {"a", "b", "c"}
    assert [len(each.documents) for each in sides.of(Write)] == [3, 1, 1]
    sides.failures = {"b": ["timeout"] * ATTEMPTS_MAX}
    with pytest.raises(UnavailableError, match="'b'"):
        sides.run()


def test_what_the_source_does_not_have_is_told_apart(sides):
    sides.gone = {"b"}
    done = sides.run()
    assert (done.accepted, done.missing) == ({"a", "c"}, {"b"})
    assert done.failures == ()


def test_attachments_pass_from_peer_to_peer(sides):
    sides.streamed = {"b"}
    assert sides.run().accepted == {"a", "b", "c"}
    assert [each.wanted.name for each in sides.of(Copy)] == ["b"]
    assert [each.name for each in sides.of(Write)[0].documents] == ["a", "c"]
    sides.failures = {"b": [MISSING]}
    assert sides.run().missing == {"b"}
    sides.failures = {"b": ["timeout", "forbidden"]}
    assert sides.run().accepted == {"a", "c"}
    sides.failures = {"b": ["timeout"] * ATTEMPTS_MAX}
    with pytest.raises(UnavailableError):
        sides.run()


def test_too_large_requests_are_halved(sides):
    sides.documents_max = 1
    assert sides.run().accepted == {"a", "b", "c"}
    assert sorted(len(each.documents) for each in sides.of(Write)) == [1, 1, 1, 2, 3]
    sides.documents_max = 0
    assert {each.error for each in sides.run().failures} == {TOO_LARGE}


def test_too_large_answers_are_halved_and_a_single_one_is_streamed(sides):
    sides.wanted_max = 1
    assert sides.run().accepted == {"a", "b", "c"}
    sides.wanted_max = 0
    assert sides.run().accepted == {"a", "b", "c"}
    assert len(sides.of(Copy)) == 3


def test_documents_are_fetched_and_written_in_groups(sides, monkeypatch):
    monkeypatch.setattr(batches, "FETCH_DOCUMENTS_MAX", 2)
    monkeypatch.setattr(batches, "WRITE_BYTES_MAX", 10)
    sides.run()
    assert [len(each.wanted) for each in sides.of(Fetch)] == [2, 1]
    assert [len(each.documents) for each in sides.of(Write)] == [1, 1, 1]


@pytest.mark.parametrize("name", ["", "z"])
def test_a_refusal_that_names_nothing_is_found_by_smaller_requests(sides, name):
    def answer(request):
        if isinstance(request, Write) and any(each.name == "b" for each in request.documents):
            return (Failure(name, "", "bad_request", "too deep"),)
        return Sides.answer(sides, request)

    sides.answer = answer
    done = sides.run()
    assert done.accepted == {"a", "c"}
    assert done.failures == (Failure("b", "", "bad_request", "too deep"),)
    assert done.statistics[3:5] == (2, 1)


@pytest.mark.parametrize("kind", [Diff, Write, Copy])
@pytest.mark.parametrize("code", ["bad_request", "doc_validation", "illegal_docid"])
def test_a_whole_request_that_is_refused_is_one_documents_fault(sides, kind, code):
    def answer(request):
        names = {
            Diff: lambda: list(request.revs),
            Write: lambda: [each.name for each in request.documents],
            Copy: lambda: [request.wanted.name],
            Fetch: list,
            ReadInfo: list,
        }[type(request)]()
        if isinstance(request, kind) and "b" in names:
            raise UsageError("no", code=code)
        return Sides.answer(sides, request)

    sides.answer, sides.streamed = answer, {"b"} if kind is Copy else set()
    done = sides.run()
    assert done.accepted == {"a", "c"}
    assert [(each.name, each.error) for each in done.failures] == [("b", code)]


def test_a_request_that_is_refused_whatever_is_in_it_ends_the_batch(sides):
    def answer(request):
        raise UsageError("no", code="bad_content_type")

    sides.answer = answer
    with pytest.raises(UsageError):
        sides.run()


def test_a_refusal_without_a_revision_is_tried_again_and_never_taken_for_a_success(sides):
    def answer(request):
        found = Sides.answer(sides, request)
        return tuple(e._replace(rev="") for e in found) if isinstance(request, Write) else found

    sides.answer, sides.failures = answer, {"b": ["timeout"] * ATTEMPTS_MAX}
    with pytest.raises(UnavailableError, match="'b'"):
        sides.run()


@pytest.mark.parametrize(
    "code", ["majority_awaited", "majority_impossible", "disk_full", "node_failed", "stopping"]
)
def test_what_passes_is_no_refusal_of_a_document(sides, code):
    sides.failures = {"b": [code, code]}
    assert sides.run().accepted == {"a", "b", "c"}
    sides.failures = {"b": [code] * ATTEMPTS_MAX}
    with pytest.raises(UnavailableError, match="'b'"):
        sides.run()


def test_a_document_that_a_target_stumbles_over_is_a_failure_if_it_takes_others(sides):
    sides.failures = {"b": ["internal_server_error"] * ATTEMPTS_MAX}
    done = sides.run()
    assert (done.accepted, [each.name for each in done.failures]) == ({"a", "c"}, ["b"])
    names = [f"n{number}" for number in range(SUSPECTS_MAX + 1)]
    sides.failures = {name: ["internal_server_error"] * 99 for name in names}
    with pytest.raises(UnavailableError):
        sides.run([Row(name, ("1-" + name,)) for name in names])


def test_a_target_that_stumbles_over_all_documents_is_given_up_soon(sides):
    names = [f"n{number}" for number in range(100)]
    sides.failures = {name: ["internal_server_error"] * 999 for name in names}
    with pytest.raises(UnavailableError):
        sides.run([Row(name, ("1-" + name,)) for name in names])
    assert sum(each.wait_ms for each in sides.of(Pause)) < 30_000


def names_in(request):
    if isinstance(request, Diff):
        return set(request.revs)
    if isinstance(request, Fetch):
        return {each.name for each in request.wanted}
    if isinstance(request, Copy):
        return {request.wanted.name}
    return {each.name for each in request.documents} if isinstance(request, Write) else set()


def failing(sides, kinds, names, error):
    """Have each request of some kinds fail that has one of some documents in it."""

    def answer(request):
        if isinstance(request, kinds) and names_in(request) & names:
            raise error
        return Sides.answer(sides, request)

    sides.answer = answer


ERRORS = [
    UnavailableError("HTTP status 500", code="function_clause"),
    UnavailableError("HTTP status 500", code="internal_server_error"),
    UnavailableError("HTTP status 502"),
    UnavailableError("it breaks the connection off", code="unreachable"),
    AccessError("HTTP status 403", code="forbidden"),
    UsageError("HTTP status 422"),
    RemoteProtocolError("the answer is no JSON"),
]


@pytest.mark.parametrize("kinds", [(Diff,), (Write,), (Fetch, Copy), (Copy,)], ids=str)
@pytest.mark.parametrize("error", ERRORS, ids=str)
@pytest.mark.parametrize("rows", [ROWS, ROWS[1:2]], ids=["among others", "alone"])
def test_a_document_that_makes_each_request_fail_is_refused_and_the_others_pass(
    sides, kinds, error, rows
):
    sides.streamed = {"b"} if kinds == (Copy,) else set()
    failing(sides, kinds, {"b"}, error)
    done = sides.run(rows)
    assert done.accepted == {row.name for row in rows} - {"b"}
    assert [(each.name, each.error) for each in done.failures] == [("b", error.code)]
    assert done.statistics.doc_write_failures == 1


def test_a_document_that_fails_in_a_group_is_read_alone(sides):
    failing(sides, Fetch, {"b"}, UnavailableError("HTTP status 500", code="badmatch"))
    done = sides.run()
    assert done.accepted == {"a", "b", "c"}
    assert [each.wanted.name for each in sides.of(Copy)] == ["b"]


@pytest.mark.parametrize("kind", [Diff, Fetch, Write])
def test_a_side_that_answers_nothing_else_is_at_fault(sides, kind):
    failing(sides, (kind, ReadInfo), {"b"}, UnavailableError("HTTP status 500", code="badmatch"))
    right = sides.answer

    def answer(request):
        if isinstance(request, ReadInfo):
            raise UnavailableError("no answer", code="unreachable")
        return right(request)

    sides.answer = answer
    with pytest.raises(UnavailableError, match="status 500"):
        sides.run()


@pytest.mark.parametrize("code", ["disk_full", "busy", "stopping", "unauthorized"])
def test_what_a_side_says_of_itself_is_no_documents_fault(sides, code):
    failing(sides, Write, {"b"}, UnavailableError("not now", code=code))
    with pytest.raises(UnavailableError, match="not now"):
        sides.run()


@pytest.mark.parametrize("kinds", [(Diff,), (Write,), (Fetch, Copy), (Copy,)], ids=str)
def test_a_side_that_takes_nothing_is_at_fault_though_it_answers(sides, kinds):
    rows = [Row(f"n{number:02}", (f"1-{number}",)) for number in range(3 * SUSPECTS_MAX)]
    sides.streamed = {row.name for row in rows} if kinds == (Copy,) else set()
    failing(sides, kinds, {row.name for row in rows}, UnavailableError("500", code="badmatch"))
    with pytest.raises(UnavailableError, match="500"):
        sides.run(rows)
    sides.asked.clear()
    failing(sides, kinds, {row.name for row in rows[1:]}, UnavailableError("500", code="badmatch"))
    assert sides.run(rows).accepted == {"n00"}, "it takes one: it is not at fault"


def test_attachments_that_a_target_should_have_and_has_not_are_sent_again(sides):
    def answer(request):
        if isinstance(request, Diff):
            return {"b": Difference(("2-b",), ("1-b",))}
        if isinstance(request, Copy) and request.wanted.known:
            return (Failure("b", "2-b", "missing_stub"),)
        return Sides.answer(sides, request)

    sides.answer, sides.streamed = answer, {"b"}
    assert sides.run([Row("b", ("2-b",))]).accepted == {"b"}
    assert [each.wanted.known for each in sides.of(Copy)] == [("1-b",), ()]


def test_a_document_with_attachments_that_is_gone_at_the_source_is_missing(sides):
    def answer(request):
        if isinstance(request, Copy):
            raise ConditionError("missing", code="not_found")
        return Sides.answer(sides, request)

    sides.answer, sides.streamed = answer, {"b"}
    assert sides.run().missing == {"b"}
