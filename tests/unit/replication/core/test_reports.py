from millstream.replication.core.jobs import parse_job
from millstream.replication.core.reports import figures_of, job_name, shown, task_of

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
    task = task_of("n", job, None, "doc")
    assert "secret" not in str(task)
    assert (task["source"], task["target"]) == (shown(job.source), "b")
    assert task["source"].endswith("/db/")
    assert task["doc_id"] == "doc"
    assert figures_of(None) == {}
