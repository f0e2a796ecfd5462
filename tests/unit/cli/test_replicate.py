import pytest

from millstream.cli.replicate import state_of, summary
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["db", "http://127.0.0.1:1/db"], "is no address"),
        (["http://127.0.0.1:1/a", "http://127.0.0.1:1/b", "--selector", "{"], "no JSON"),
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
