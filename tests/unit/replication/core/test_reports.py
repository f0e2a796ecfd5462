from millstream.errors import UnavailableError
from millstream.replication.core.jobs import parse_job
from millstream.replication.core.logs import Statistics
from millstream.replication.core.reports import Totals, figures_of, job_name, shown, task_of
from millstream.replication.core.running import Run

JOB = {"source": "http://ada:secret@a.example/db", "target": "b"}


def test_a_job_has_one_name_for_what_it_asks():
    name = job_name(parse_job(JOB))
    assert name == job_name(parse_job(JOB))
    assert job_name(parse_job(JOB | {"continuous": True})) == name + "+continuous"
    both = job_name(parse_job(JOB | {"continuous": True, "create_target": True}))
    assert both == name + "+continuous+create_target"
    assert job_name(parse_job(JOB | {"doc_ids": ["x"]})) != name


def test_no_secret_is_told():
    job = parse_job(JOB)
    task = task_of("n", job, None, "doc", since_ns=5 * 10**9, now_ns=7_900_000_000)
    assert "secret" not in str(task)
    assert (task["source"], task["target"]) == (shown(job.source), "b")
    assert task["source"].endswith("/db/")
    assert task["doc_id"] == "doc"
    assert (task["started_on"], task["updated_on"]) == (5, 7)
    assert figures_of(None) == {}


def test_totals_count_runs_that_go_on_and_those_that_are_over():
    totals = Totals()
    runs = [Run(parse_job(JOB), lambda: "id") for _ in range(2)]
    runs[0].statistics, runs[0].skipped = Statistics(docs_written=3, rows_read=4), 100
    with totals.counting(runs[1]):
        with totals.counting(runs[0]):
            pass
        runs[1].statistics = Statistics(docs_written=5)
        figures = totals.figures()
    assert totals.figures() == figures
    assert figures["replicator_docs_written_total"] == 8
    assert figures["replicator_changes_read_total"] == 4
    assert figures["replicator_changes_skipped_total"] == 100
    totals.ended(None)
    totals.ended(UnavailableError("down"))
    assert totals.figures()["replicator_crashes_total"] == 1
