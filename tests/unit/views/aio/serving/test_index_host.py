"""Calls of the engine; what a bucket's indexes do is in test_hosted_bucket."""

import json

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.views import register
from millstream.views.aio.serving.index_host import IndexHost

ORDER = {
    "uuid": "u1", "name": "orders", "partition_count": 4, "active": [0, 1], "passive": [2],
    "resting": [],
    "designs": {"d": {"views": {"v": {"map": "function(d){}"}}}},
}  # fmt: skip


@pytest.fixture
async def host(tmp_path):
    made = IndexHost(tmp_path, f"unix:{tmp_path}/nobody")
    yield made
    await made.stop()


async def test_an_unknown_call_is_refused(host):
    with pytest.raises(UsageError):
        await host.call("nonsense", {})


async def test_a_bucket_is_known_until_it_is_dropped(host):
    await host.call("set_bucket", ORDER)
    assert (await host.call("info", {"uuid": "u1", "design": "d"})).head["signature"]
    for uuid, design in (("u1", "other"), ("u2", "d")):
        with pytest.raises(ConditionError):
            await host.call("info", {"uuid": uuid, "design": design})
    await host.call("drop_bucket", {"uuid": "u1"})
    await host.call("drop_bucket", {"uuid": "u1"})
    with pytest.raises(ConditionError):
        await host.call("info", {"uuid": "u1", "design": "d"})


async def test_buckets_are_separate(host, tmp_path):
    await host.call("set_bucket", ORDER)
    await host.call("set_bucket", {**ORDER, "uuid": "u2"})
    await host.call("drop_bucket", {"uuid": "u1"})
    assert (await host.call("info", {"uuid": "u2", "design": "d"})).head["signature"]
    assert len(list((tmp_path / "u1" / "indexes").iterdir())) == 1, "files go with the bucket's"


async def test_a_query_is_asked_of_its_bucket(host):
    await host.call("set_bucket", {**ORDER, "active": [0, 1, 2, 3], "passive": []})
    options = {"update": "false", "reduce": False}
    asked = {"uuid": "u1", "design": "d", "view": "v", "options": options}
    answer = await host.call("query", asked)
    assert json.loads(b"".join(answer.body)) == {"total_rows": 0, "offset": 0, "rows": []}
    part = await host.call("query", {**asked, "partitions": [1], "form": "part"})
    assert part.body
    assert (await host.call("compact", {"uuid": "u1", "design": "d"})).head == {}
    assert (await host.call("cleanup", {"uuid": "u1"})).head == {}


async def test_statistics_and_tasks_cover_all_buckets(host):
    await host.call("set_bucket", ORDER)
    figures = (await host.call("figures", {})).head
    assert figures["process"]["resident_bytes"] > 0
    assert figures["buckets"]["u1"]["indexes"] == 1
    for task in (await host.call("tasks", {})).head["tasks"]:
        assert task["pid"] > 0


async def test_functions_are_looked_up(host):
    good = {"language": "python", "views": {"v": {"map": "registered:test.index_host"}}}
    with pytest.raises(UsageError) as caught:
        await host.call("check", {"design": "d", "content": good})
    assert caught.value.code == "unknown_function"
    register("test.index_host")(lambda document: None)
    answer = await host.call("check", {"design": "d", "content": good})
    assert answer.head == {}
    with pytest.raises(UsageError) as caught:
        await host.call("check", {"design": "d", "content": {"views": {"v": {"map": "d =>"}}}})
    assert caught.value.code == "compilation_error"


async def test_an_outside_writer_is_reached_by_calls(host):
    spark = {"d": {"views": {"v": {"map": "function(d){}"}}, "engine": "spark"}}
    await host.call("set_bucket", {**ORDER, "designs": spark})
    asked = {"uuid": "u1", "design": "d"}
    state = (await host.call("index", asked)).head
    assert (state["engine"], state["fence"], state["is_empty"]) == ("spark", 0, True)
    with pytest.raises(ConditionError) as caught:
        await host.call("place", {**asked, "fence": 1, "run": "r"})
    assert caught.value.code == "index_fenced"
    place = (await host.call("place", {**asked, "fence": 0, "run": "r"})).head
    assert place["path"].endswith("/staged/0/r.part")
    with pytest.raises(ConditionError):
        await host.call("staged", {**asked, "fence": 0, "run": "r"})
    for call in ("take_over", "judge", "load", "publish"):
        said = {"fence": 0, "writer": "w"}
        said["said"] = {"parts": {}, "back": [], "trees": [[]], "documents": []}
        with pytest.raises(UnavailableError):  # there is no engine to judge positions
            await host.call(call, {**asked, **said})
