import pytest

from millstream.cli.bulk import replicate
from millstream.cli.bulk.replicate import state_of, summary
from millstream.errors import AccessError, ConditionError, UnavailableError
from millstream.replication.core.jobs import parse_job
from millstream.replication.core.logs import Statistics
from millstream.replication.core.running import Run

ENTRY = {"missing_checked": 1000, "docs_written": 7, "doc_write_failures": 1}


def test_what_was_done_is_said_in_words():
    assert summary({"history": [ENTRY]}, "http://a/db") == (
        "1,000 revisions looked at, 7 documents written, 1 refused"
    )
    assert summary({"history": []}, "http://a/db").startswith("0 revisions")
    nothing = summary({"no_changes": True, "history": []}, "http://a/db")
    assert nothing == "nothing to do: the target has all that the source has"


def test_what_was_skipped_is_said_first():
    answer = {"history": [ENTRY], "skipped": 1_000_000, "covered_through": ["B", "C"]}
    first, second = summary(answer, "http://a/db").splitlines()
    assert first == "skipped 1,000,000 changes: covered through B, C, verified with http://a/db"
    assert second.startswith("1,000 revisions")


def test_what_is_not_remembered_is_said_last():
    for answer in ({"history": [ENTRY]}, {"history": [], "no_changes": True}):
        *_, last = summary(answer | {"refusals_not_remembered": 1200}, "http://a/db").splitlines()
        assert last.startswith("1,200 refusals are not remembered")


@pytest.fixture
def ends(monkeypatch):
    """How runs end, one after the other; `waits` is what is waited between them."""
    ends, waits = [], []

    async def once(job, tls, *, is_quiet):
        raise ends.pop(0)

    async def pause(wait_s):
        waits.append(wait_s)

    monkeypatch.setattr(replicate, "_once", once)
    monkeypatch.setattr(replicate, "_pause", pause)
    return ends, waits


AWAY = UnavailableError("b does not answer", code="unreachable")


def test_a_continuous_run_begins_again_when_an_end_was_away_and_ends_by_what_does_not_pass(
    call, ends
):
    (runs, waits), addresses = ends, ("http://127.0.0.1:1/a", "http://127.0.0.1:1/b")
    runs += [AWAY, AWAY, AWAY, AccessError("wrong password", code="unauthorized"), AWAY]
    done = call("replicate", *addresses, "--continuous")
    assert waits == [30, 60, 120]
    assert done.err.count("b does not answer: trying again in") == 3
    assert "wrong password" in done.err
    assert (done.code != 0, len(runs)) == (True, 1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], AWAY), (["--continuous"], AccessError("no", code="unauthorized")),
        (["--continuous"], ConditionError("no database", code="not_found")),
        (["--continuous"], UnavailableError("bad certificate", retry="never")),
    ],
)  # fmt: skip
def test_what_ends_a_run_at_once(call, ends, options, error):
    (runs, waits), addresses = ends, ("http://127.0.0.1:1/a", "http://127.0.0.1:1/b")
    runs.append(error)
    assert call("replicate", *addresses, *options).code != 0
    assert waits == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["db", "http://127.0.0.1:1/db"], "is no address"),
        (["http://127.0.0.1:1/a", "http://127.0.0.1:1/b", "--selector", "{"], "not JSON"),
        (["http://127.0.0.1:1/a"], "TARGET"),
    ],
)
def test_wrong_arguments(call, arguments, said):
    done = call("replicate", *arguments)
    assert done.code == 2
    assert said in done.err


def test_how_far_a_run_is() -> None:
    run = Run(parse_job({"source": "a", "target": "b"}), lambda: "id")
    assert state_of(run) == ("0 looked at, 0 written", 0, None)
    run.statistics = Statistics(missing_checked=1200, docs_written=9, rows_read=1000)
    run.rows_seen, run.pending = 1500, 500
    assert state_of(run) == ("1,200 looked at, 9 written", 1000, 2000)
    run.statistics = run.statistics._replace(doc_write_failures=1)
    run.skipped = 7000
    assert state_of(run)[0] == "1,200 looked at, 9 written, 1 refused, 7,000 skipped"
