"""Views that Spark keeps: the trees of the node's own index, built and maintained by executors."""

import json
import threading
import urllib.request

import pytest

from millstream.errors import ConditionError
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index.on_spark import IndexPipeline
from millstream.pipelines.index.setup import find_specs
from support.node.node_process import NodeProcess
from support.node.waiting import until
from support.views.distributed_index import IndexedNodes

KINDS = "function (doc) { emit([doc.kind, doc._rev.split('-')[0]], doc.n); }"


def design(name, source=KINDS):
    return {"_id": f"_design/{name}", "views": {"v": {"map": source, "reduce": "_sum"}}}


@pytest.fixture
def pipeline_of(bucket, tmp_path):
    def make(name="d", **more):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(design(name)))
        (spec,) = find_specs(parse_options(bucket.options()), [str(path)])
        return IndexPipeline(spec, tmp_path / "checkpoint" / name, **more)

    return make


@pytest.fixture
def ask(bucket, shared_node):
    def view(name="d", **options):
        words = "&".join(f"{key}={json.dumps(value)}" for key, value in options.items())
        base = f"http://{shared_node.ready['http']}/{bucket.name}/_design/{name}/_view/v"
        with urllib.request.urlopen(f"{base}?{words}", timeout=60) as answer:
            rows = json.loads(answer.read())["rows"]
        return [(row.get("id"), row["key"], row["value"]) for row in rows]

    return view


def documents(numbers, kind="a"):
    return {f"k{n}": {"kind": kind, "n": n} for n in numbers}


def test_spark_builds_what_the_node_builds(spark, bucket, pipeline_of, ask, shared_node):
    """The same rows, revisions included, as an index of the same map that the node keeps."""
    bucket.write(documents(range(500)))
    bucket.write({**documents(range(30), "b"), "k40": None})
    reports = []
    pipeline_of(on_cycle=reports.append).run(spark, once=True)
    (report,) = reports
    assert (report.is_first, report.rows, report.left_out) == (True, [499], 0)
    bucket.write(documents(range(100, 120), "c"))
    pipeline_of(on_cycle=reports.append).run(spark, once=True)
    assert (reports[1].is_first, reports[1].changes) == (False, 20)
    with bucket.client() as client:
        base = f"http://{shared_node.ready['http']}/{bucket.name}/_design/own"
        content = design("own", KINDS + " ")
        content["views"]["v"]["map"] = KINDS.replace("doc.n)", "doc.n + 0)")
        asked = urllib.request.Request(
            base, json.dumps(content).encode(), {"Content-Type": "application/json"}, method="PUT"
        )
        urllib.request.urlopen(asked, timeout=60).close()
        client.wait_persisted(30)
    own = ask("own", reduce=False, timeout=60_000)
    assert ask("d", reduce=False, update=False) == own
    assert ask("d", group=True, update=False) == ask("own", group=True)


@pytest.mark.parametrize("is_loop", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_queries_see_what_was_written_before_them(spark, bucket, pipeline_of, ask, is_loop):
    bucket.write(documents(range(50)))
    pipeline = pipeline_of(is_loop=is_loop)
    failures = []

    def run():
        try:
            pipeline.run(spark)
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for n in range(50, 53):
            bucket.write(documents([n]))
            rows = ask(reduce=False, timeout=60_000)
            assert (f"k{n}", ["a", "1"], n) in rows
            assert len(rows) == n + 1
    finally:
        pipeline.is_stopping = True
        thread.join(60)
    assert not failures
    assert not thread.is_alive()


def test_a_second_pipeline_takes_over(spark, bucket, pipeline_of, ask):
    bucket.write(documents(range(20)))
    first, ended = pipeline_of(is_loop=True), []

    def run():
        with pytest.raises(ConditionError) as caught:
            first.run(spark)
        ended.append(caught.value.code)

    thread = threading.Thread(target=run)
    thread.start()
    ask(timeout=60_000)
    pipeline_of().run(spark, once=True)
    bucket.write(documents(range(20, 25)))
    pipeline_of().run(spark, once=True)
    assert len(ask(reduce=False, update=False)) == 25
    until(lambda: ended == ["index_fenced"], lambda: "the first one goes on")
    thread.join()


@pytest.fixture
def indexed(tmp_path):
    made = []

    def make(*options, name):
        made.append(NodeProcess(tmp_path / name, *options))
        return made[-1]

    yield IndexedNodes(make, tmp_path)
    for node in made:
        node.kill()


def test_one_pipeline_keeps_the_indexes_of_all_nodes(spark, indexed):
    indexed.write(range(200))
    with indexed.running(spark):
        indexed.check("a", "b")
        indexed.write(range(100, 150), "again")
        indexed.check("a", "b")
        indexed.nodes.promote("a", "--to", "b", "--partition", "0")
        indexed.write(range(20), "moved")
        indexed.check("a", "b")
    assert len({report.node for report in indexed.reports}) == 2
    indexed.write(range(150, 210), "later")
    indexed.pipeline().run(spark, once=True)
    assert indexed.rows(indexed.nodes.nodes["a"], "stale=ok") == indexed.right
