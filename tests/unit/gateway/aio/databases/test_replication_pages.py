import pytest

from millstream.errors import ConditionError

JOB = {"source": "a", "target": "http://b.example/db"}


class FakeReplications:
    def __init__(self):
        self.ran, self.begun, self.cancelled, self.prepared = [], [], [], 0

    async def run(self, job):
        self.ran.append(job)
        return {"ok": True, "session_id": "s"}

    async def begin(self, job):
        self.begun.append(job)
        return "name+continuous"

    async def cancel(self, name):
        if name == "none":
            raise ConditionError("there is no such replication", code="not_found")
        self.cancelled.append(name)

    async def prepare(self):
        self.prepared += 1

    def jobs(self):
        return [{"id": f"j{number}"} for number in range(5)]

    def documents(self):
        return [{"doc_id": "a/b", "state": "running"}]


@pytest.fixture
def replications(open_node, guarded_node):
    made = FakeReplications()
    open_node.replications = guarded_node.replications = made
    return made


async def test_a_job_is_run_begun_or_cancelled(client, replications, body):
    assert await body(await client.post("/_replicate", json=JOB)) == {
        "ok": True,
        "session_id": "s",
    }
    [job] = replications.ran
    assert (job.source.name, job.target.url) == ("a", "http://b.example/db")
    begun = await body(await client.post("/_replicate", json=JOB | {"continuous": True}), 202)
    assert begun == {"ok": True, "_local_id": "name+continuous"}
    for named in ({"_local_id": "x"}, {"replication_id": "x"}, {"id": "x"}):
        ended = await body(await client.post("/_replicate", json=named | {"cancel": True}))
        assert ended == {"ok": True, "_local_id": "x"}
    ended = await body(await client.post("/_replicate", json=JOB | {"cancel": True}))
    assert replications.cancelled == ["x", "x", "x", ended["_local_id"]]
    await body(await client.post("/_replicate", json={"id": "none", "cancel": True}), 404)


@pytest.mark.parametrize("form", [{}, {"source": "a"}, {"source": 7, "target": "b"}])
async def test_what_is_no_job(client, replications, body, form):
    await body(await client.post("/_replicate", json=form), 400)
    assert replications.ran == []


async def test_jobs_are_told(client, replications, body):
    found = await body(await client.get("/_scheduler/jobs?skip=1&limit=2"))
    assert found == {"total_rows": 5, "offset": 1, "jobs": [{"id": "j1"}, {"id": "j2"}]}
    assert await body(await client.get("/_scheduler/jobs/j3")) == {"id": "j3"}
    await body(await client.get("/_scheduler/jobs/j9"), 404)
    await body(await client.get("/_scheduler/jobs?limit=x"), 400)
    for path in ("/_scheduler/docs", "/_scheduler/docs/_replicator"):
        assert (await body(await client.get(path)))["docs"][0]["doc_id"] == "a/b"
    one = await body(await client.get("/_scheduler/docs/_replicator/a%2Fb"))
    assert one["state"] == "running"


async def test_the_database_of_jobs_is_made_with_the_first_one(client, replications, body):
    await body(await client.get("/_replicator/job"), 404)
    assert replications.prepared == 0
    await body(await client.put("/_replicator/job", json=JOB), 404)  # the double makes none
    assert replications.prepared == 1


async def test_only_administrators(guarded, replications, body, ada, bob):
    for path in ("/_scheduler/jobs", "/_scheduler/docs", "/_replicator/job"):
        await body(await guarded.get(path), 401)
        await body(await guarded.get(path, headers=bob), 403)
    await body(await guarded.post("/_replicate", json=JOB, headers=bob), 403)
    await body(await guarded.post("/_replicate", json=JOB, headers=ada))
