"""The views pipeline on a real node and a real Spark: a random history against brute force,
every kind of reduce, odd values, restarts at the worst moments, two writers, rollback."""

from __future__ import annotations

import json
import random
import ssl
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

import millstream
from millstream.errors import ConditionError, MillstreamError
from millstream.pipelines import view_rows
from millstream.pipelines.bucket_changes import BucketChanges, Endpoint
from millstream.pipelines.view_reading import read_header, read_view
from millstream.pipelines.view_reduce import ReducedBatch, ViewRow
from millstream.pipelines.view_setup import ensure_store
from millstream.pipelines.view_store import STORE_SUFFIX, Applied, ViewStore, row_body, row_key
from millstream.pipelines.views import ViewsPipeline
from millstream.views import register
from millstream.views.core.design import parse_design
from millstream.views.core.query import Query

JAVASCRIPT = {
    "views": {
        "by_kind": {"map": "d => { if (d.kind) emit(d.kind, d.n); }", "reduce": "_stats"},
        "counted": {"map": "d => { for (const t of d.tags || []) emit([d.kind, t]); }",
                    "reduce": "_count"},
        "listed": {"map": "d => { if (d.n > 90) emit(d.n, d._id); }"},
        "longest": {"map": "d => { if (d.kind) emit(d.kind, String(d.n)); }",
                    "reduce": "(k, v, r) => v.reduce((a, b) => a.length >= b.length ? a : b)"},
        "summed": {"map": "d => { if (d.kind) emit(null, d.n % 2 ? d.n : [d.n, 1]); }",
                   "reduce": "_sum"},
    }
}  # fmt: skip
numbers = count()


@register("test.pipelines.views.kinds")
def kinds(document):
    if "kind" in document:
        yield document["kind"], document["n"] + 0.5


class Views:
    """A bucket, its store and a checkpoint."""

    def __init__(self, bucket, design, tmp_path):
        self.bucket = bucket
        self.endpoint = Endpoint(bucket.address)
        self.design = parse_design(design, f"d{next(numbers)}")
        self.checkpoint = tmp_path / "checkpoint"
        ensure_store(self.endpoint, bucket.name)

    def run(self, spark, **options):
        reports = []
        pipeline = ViewsPipeline(
            self.endpoint, self.bucket.name, self.design, self.checkpoint,
            on_batch=reports.append, **options,
        )  # fmt: skip
        pipeline.run(spark, once=True)
        return reports

    def rows(self, view, **query):
        query = query or {"group": True}
        view = read_view(self.endpoint, self.bucket.name, self.design.name, view)
        return view.answer(Query(**query))["rows"]

    def grouped(self, view):
        return {json.dumps(row["key"]): row["value"] for row in self.rows(view)}

    def header(self):
        with self.endpoint.client(self.bucket.name + STORE_SUFFIX) as client:
            return read_header(client, self.design.name)


@pytest.fixture
def make_views(bucket, tmp_path):
    return lambda design: Views(bucket, design, tmp_path)


def brute_force(documents):
    """What JAVASCRIPT must give, but for `listed` and `longest`, written down a second time."""
    stats, tags, odd, even = {}, defaultdict(int), 0, 0
    for document in documents.values():
        n = document["n"]
        found = stats.setdefault(json.dumps(document["kind"]), [])
        found.append(n)
        for tag in document["tags"]:
            tags[json.dumps([document["kind"], tag])] += 1
        if n % 2:
            odd += n
        else:
            odd, even = odd + n, even + 1
    by_kind = {
        kind: {"sum": sum(found), "count": len(found), "min": min(found), "max": max(found),
               "sumsqr": sum(n * n for n in found)}
        for kind, found in stats.items()
    }  # fmt: skip
    return by_kind, dict(tags), [odd, even]


def test_views_follow_a_random_history(spark, make_views):
    views = make_views(JAVASCRIPT)
    dice = random.Random(7)
    documents = {}
    for round_ in range(2):
        changes = {}
        for _ in range(120):
            key = f"doc{dice.randrange(80)}"
            if dice.random() < 0.25:
                changes[key] = None
            else:
                tags = dice.sample("xyz", dice.randrange(3))
                changes[key] = {"kind": dice.choice("ABC"), "n": dice.randrange(100), "tags": tags}
        views.bucket.write(changes)
        documents = {k: v for k, v in (documents | changes).items() if v is not None}
        views.run(spark)
        by_kind, tags, total = brute_force(documents)
        assert views.grouped("by_kind") == by_kind
        assert views.grouped("counted") == tags
        assert views.grouped("summed") == {"null": total}
        assert {(row["id"], row["key"]) for row in views.rows("listed", skip=0)} == {
            (key, document["n"]) for key, document in documents.items() if document["n"] > 90
        }
        for kind, longest in views.grouped("longest").items():
            texts = [str(d["n"]) for d in documents.values() if json.dumps(d["kind"]) == kind]
            assert len(longest) == max(map(len, texts))
        assert views.header()["documents"] == len(documents), round_
    header = views.header()
    assert header["updates"] > 0
    assert header["deletes"] > 0
    frame = view_rows(
        spark, views.bucket.address, views.bucket.name, views.design.name, "by_kind"
    )  # fmt: skip
    found = {row.key: json.loads(row.value) for row in frame.collect()}
    assert found == brute_force(documents)[0]


def test_python_functions_and_floats(spark, make_views):
    design = {"views": {"v": {"map": "registered:test.pipelines.views.kinds", "reduce": "_sum"}}}
    views = make_views({**design, "language": "python"})
    module = "millstream_test_functions"
    directory = views.checkpoint.parent
    (directory / f"{module}.py").write_text(
        "from millstream.views import register\n"
        "@register('test.pipelines.views.kinds')\n"
        "def kinds(document):\n"
        "    if 'kind' in document:\n"
        "        yield document['kind'], document['n'] + 0.5\n"
    )
    spark.sparkContext.addPyFile(str(directory / f"{module}.py"))
    views.bucket.write({"a": {"kind": "A", "n": 1}, "b": {"kind": "A", "n": 2}, "c": {"n": 3}})
    views.run(spark, modules=(module,))
    assert views.grouped("v") == {'"A"': 4.0}


def test_odd_keys_and_values_never_raise(spark, make_views):
    views = make_views(
        {"views": {
            "ids": {"map": "d => emit(d._id)"},
            "sums": {"map": "d => emit(1, d.v)", "reduce": "_sum"},
            "throws": {"map": "d => { emit(2); if (d.bad) throw new Error('bad'); }",
                       "reduce": "_count"},
        }}
    )  # fmt: skip
    with views.bucket.client() as client:
        client.upsert(b"\xff\xfe", {"v": 1})
        client.upsert(b"\\x41", {"v": 1})
        client.upsert("line\nfeed", {"v": 1}, flags=0xFFFFFFFF)
        client.upsert("_private", {"v": 1})
        client.upsert("binary", b"\x00\xff")
        client.upsert("number", 7)
        client.upsert("member", {"_id": "other"})
        client.upsert("nested", msgspec_raw(b'{"a":' * 3000 + b"1" + b"}" * 3000))
        client.upsert("large", {"v": 2**53 + 1, "bad": True})
        client.upsert("surrogate", msgspec_raw(b'{"v":1,"t":"\\ud800"}'))
        client.upsert("gone", {"v": 1000})
        client.remove("gone")
    views.run(spark)
    ids = {row["id"] for row in views.rows("ids", skip=0)}
    assert {"\\x41", "line\nfeed", "large"} <= ids
    assert not ids & {"_private", "binary", "number", "member", "gone"}
    assert views.grouped("throws") == {"2": len(ids) - 1}
    header = views.header()
    assert header["map_errors"]["throws"] == 1
    assert header["error_samples"][0]["id"] == "large"
    views.bucket.write({"text": {"v": "x"}})
    views.run(spark)
    assert views.grouped("sums")["1"]["error"] == "builtin_reduce_error"
    assert views.grouped("throws") == {"2": len(ids)}
    views.bucket.write({"text": None})
    views.run(spark)
    assert isinstance(views.grouped("sums")["1"], int)


def msgspec_raw(data):
    import msgspec

    return msgspec.Raw(data)


TLS = Path(__file__).parents[1] / "e2e" / "tls"
COUNT = {"views": {"v": {"map": "d => emit(d.g, d.n)", "reduce": "_sum"}}}


def sums(documents):
    found = defaultdict(int)
    for document in documents.values():
        found[json.dumps(document["g"])] += document["n"]
    return dict(found)


def test_a_batch_that_was_written_but_not_committed_is_harmless(spark, make_views, monkeypatch):
    views = make_views(COUNT)
    first = {f"k{n}": {"g": n % 3, "n": n} for n in range(60)}
    views.bucket.write(first)
    views.run(spark)

    written = ViewStore.apply

    def die_after(self, batch_id, reduced, header):
        written(self, batch_id, reduced, header)
        raise ConditionError("the driver dies after the store was written", code="died")

    second = {f"k{n}": {"g": 9, "n": 1} for n in range(20)} | {"k30": None}
    views.bucket.write(second)
    monkeypatch.setattr(ViewStore, "apply", die_after)
    with pytest.raises(ConditionError, match="the driver dies"):
        views.run(spark)
    monkeypatch.undo()
    # The replay of that batch finds fewer changes: some keys have newer versions by now.
    third = {f"k{n}": {"g": 5, "n": 2} for n in range(10)} | {"k40": None}
    views.bucket.write(third)
    views.run(spark)
    final = {k: v for k, v in (first | second | third).items() if v is not None}
    assert views.grouped("v") == sums(final)
    assert views.header()["documents"] == len(final)


def test_a_crash_in_the_middle_of_the_store_is_completed(spark, make_views, monkeypatch):
    views = make_views(COUNT)
    documents = {f"k{n}": {"g": n % 7, "n": n} for n in range(70)}
    views.bucket.write(documents)

    def half(self, changed, vanished, wanted, stamp):
        kept(self, changed[: len(changed) // 2], [], wanted, stamp)
        raise ConditionError("half of the batch is written", code="died")

    kept = ViewStore._write
    monkeypatch.setattr(ViewStore, "_write", half)
    with pytest.raises(ConditionError, match="half of the batch"):
        views.run(spark)
    monkeypatch.undo()
    views.run(spark)
    assert views.grouped("v") == sums(documents)


def test_a_lost_store_or_a_lost_checkpoint_is_built_anew(spark, make_views):
    views = make_views(COUNT)
    documents = {f"k{n}": {"g": n % 3, "n": n} for n in range(30)}
    views.bucket.write(documents)
    views.run(spark)
    with views.endpoint.client(views.bucket.name + STORE_SUFFIX) as client:
        client.remove(f"header:{views.design.name}")
        client.remove(f"{views.design.name}/v/1")
    views.run(spark)
    assert views.grouped("v") == sums(documents)
    views.checkpoint = views.checkpoint.with_name("another")
    views.bucket.write({"k0": {"g": 0, "n": 500}})
    views.run(spark)
    assert views.grouped("v") == sums(documents | {"k0": {"g": 0, "n": 500}})


def test_a_changed_design_document_replaces_the_rows(spark, make_views):
    views = make_views(COUNT)
    views.bucket.write({"a": {"g": 1, "n": 2}, "b": {"g": 1, "n": 3}})
    views.run(spark)
    changed = {"views": {"v": {"map": "d => emit('all', 1)", "reduce": "_sum"}}}
    views.design = parse_design(changed, views.design.name)
    views.checkpoint = views.checkpoint.with_name("changed")
    views.run(spark)
    assert views.grouped("v") == {'"all"': 2}


def test_nothing_new_writes_nothing(spark, make_views):
    views = make_views(COUNT)
    views.bucket.write({"a": {"g": 1, "n": 2}})
    assert sum(report.changed for report in views.run(spark)) == 1
    assert sum(report.changed + report.deleted for report in views.run(spark)) == 0


def test_a_second_writer_takes_over(spark, make_views, monkeypatch):
    views = make_views(COUNT)
    views.bucket.write({"a": {"g": 1, "n": 2}})
    views.run(spark)
    kept = ViewStore.apply

    def overtaken(self, batch_id, reduced, header):
        with views.endpoint.client(views.bucket.name + STORE_SUFFIX) as client:
            changes = BucketChanges(views.endpoint, client)
            other = ViewStore(client, changes, views.design, "other run")
            other.take_over(other.read_header())
        return kept(self, batch_id, reduced, header)

    monkeypatch.setattr(ViewStore, "apply", overtaken)
    views.bucket.write({"a": {"g": 1, "n": 3}})
    with pytest.raises(ConditionError) as caught:
        views.run(spark)
    assert caught.value.code == "taken_over"


def test_what_a_run_that_was_taken_over_writes_late_is_put_right(make_views):
    views = make_views(COUNT)
    batch = ReducedBatch(rows=[ViewRow(0, str(group), None, b"1") for group in range(50)])

    def open_store(client, run):
        store = ViewStore(client, BucketChanges(views.endpoint, client), views.design, run)
        store.read_header()
        store.take_over({"batch": None})
        return store

    with views.endpoint.client(views.bucket.name + STORE_SUFFIX) as client:
        old, new = open_store(client, "old"), open_store(client, "new")
        assert new.apply(0, batch, {}).changed == 50
        body = row_body(views.design, ViewRow(0, "7", None, b"70"))
        late = msgspec_raw(body + b',"stamp":{"run":"old","batch":0}}')
        client.upsert(row_key(views.design.name, "v", "7", None), late)
        client.upsert(row_key(views.design.name, "v", "700", None), late)
        client.remove(row_key(views.design.name, "v", "8", None))
        with pytest.raises(ConditionError, match="has taken over"):
            old.apply(0, batch, {})
        assert new.apply(1, batch, {}) == Applied(2, 1)
        assert new.apply(2, batch, {}) == Applied(0, 0)
    assert views.grouped("v") == {str(group): 1 for group in range(50)}


def test_changes_of_a_bucket_are_read_once_and_anew_after_a_new_history(own_node):
    node = own_node("--bucket", "b:4")
    endpoint = Endpoint(node.ready["kv"])
    with endpoint.client("b") as client:
        client.apply_many([(f"k{n}", n) for n in range(9)], durability="persisted")
        changes = BucketChanges(endpoint, client)
        everything = {b"k%d" % n: b"%d" % n for n in range(9)}
        assert changes.read() == (True, everything)
        assert changes.read() == (False, {})
        client.remove("k1")
        client.upsert("k2", 22, durability="persisted")
        assert changes.read() == (False, {b"k1": None, b"k2": b"22"})
    node.kill()
    node.start()
    with endpoint.client("b") as client:
        changes._client = client
        client.upsert("k1", 11)
        assert changes.read() == (True, everything | {b"k1": b"11", b"k2": b"22"})
        client.upsert("k3", 33)
        assert changes.read() == (False, {b"k3": b"33"})


def test_source_and_store_over_tls(spark, own_node, tmp_path):
    node = own_node(
        *("--bucket", "b:2", "--http", "127.0.0.1:0", "--advertise", "localhost"),
        *("--tls-cert", str(TLS / "node.pem"), "--user", "ada:secret"),
    )
    address = f"localhost:{node.kv[1]}"
    trust = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
    endpoint = Endpoint(address, "ada", "secret", trust)
    ensure_store(endpoint, "b")
    with endpoint.client("b") as client:
        client.upsert("a", {"g": 1, "n": 2})
    password = tmp_path / "password"
    password.write_text("secret")
    options = {"user": "ada", "passwordFile": str(password), "tlsCa": str(TLS / "authority.pem")}
    design = parse_design(COUNT, "tls")
    pipeline = ViewsPipeline(
        endpoint, "b", design, tmp_path / "checkpoint", source_options=options
    )  # fmt: skip
    pipeline.run(spark, once=True)
    frame = view_rows(spark, address, "b", "tls", "v", **options)
    assert [(row.key, row.value) for row in frame.collect()] == [("1", "2")]


def test_pipelines_that_begin_together_share_no_environment_in_spark(spark, bucket, tmp_path):
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    shared = manager.lookupDataSource("millstream").dataSourceCls().envVars()
    # Every stream puts this into the map of its format, unlocked: two at once break the map.
    shared.remove("SPARK_BUFFER_SIZE")
    both = [Views(bucket, COUNT, tmp_path / name) for name in "ab"]
    bucket.write({"a": {"g": 1, "n": 2}})
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(views.run, spark) for views in both]
        assert [run.result()[-1].documents for run in runs] == [1, 1]
    assert "SPARK_BUFFER_SIZE" not in list(shared.keySet())


def test_a_rollback_ends_the_pipeline_and_names_partition_and_seqno(spark, own_node, tmp_path):
    node = own_node("--bucket", "b:2", "--flush-interval", "60000")
    bucket = millstream.connect(node.ready["kv"], bucket="b")
    with bucket as client:
        client.upsert("kept", {"g": 1, "n": 1}, durability="persisted")

    class Source:
        address, name = node.ready["kv"], "b"

    views = Views(Source, COUNT, tmp_path)
    with millstream.connect(node.ready["kv"], bucket="b") as client:
        for n in range(20):
            client.upsert(f"lost{n}", {"g": 2, "n": n})
    views.run(spark)
    assert views.header()["documents"] == 21
    node.kill()
    node.start()
    with millstream.connect(node.ready["kv"], bucket="b") as client:
        for n in range(30):
            client.upsert(f"new{n}", {"g": 3, "n": n}, durability="persisted")
    with pytest.raises(MillstreamError, match=r"partition \d+ .*rolled back to seqno \d+") as told:
        views.run(spark)
    assert told.value.code == "rollback_required"
