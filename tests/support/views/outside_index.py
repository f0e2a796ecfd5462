"""A real node with buckets of its own for each test, and writers of its indexes without Spark."""

import json
import urllib.request
from itertools import count

import pytest

import millstream
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index.mapping import run_task
from millstream.pipelines.index.setup import find_specs
from millstream.pipelines.index.writer import IndexWriter
from support.node.node_process import NodeProcess, kept_ports

BUCKETS = 24
PARTITIONS = 4
MAP = "function (doc) { if (doc.bad) throw 'bad'; emit(doc.kind, doc.n); }"
DESIGN = {"_id": "_design/d", "views": {"v": {"map": MAP, "reduce": "_sum"}}}
_numbers = count()


class Bucket:
    """A bucket, what was written to it, and its view."""

    def __init__(self, node, name, folder):
        self.node, self.name, self.folder = node, name, folder
        self.documents = {}

    def client(self):
        return millstream.connect(self.node.ready["kv"], bucket=self.name)

    def write(self, documents):
        """Write documents, None for a deletion."""
        self.documents.update(documents)
        with self.client() as client:
            client.apply_many(documents.items()).raise_first()

    def persist(self):
        """Have all of it on the disk, however seldom the node writes there by itself."""
        key = min(self.documents)
        with self.client() as client:
            client.upsert(key, self.documents[key], durability="persisted")

    def source(self, **more):
        return parse_options({"hosts": self.node.ready["kv"], "bucket": self.name, **more})

    def file(self, design=None):
        path = self.folder / "design.json"
        path.write_text(json.dumps(design or DESIGN))
        return str(path)

    def spec(self, design=None, **more):
        (spec,) = find_specs(self.source(), [self.file(design)], **more)
        return spec

    def writer(self, run=None, design=None, **more):
        return IndexWriter(self.spec(design), run or here, name="test", **more)

    def view(self, **options):
        words = "&".join(f"{name}={json.dumps(value)}" for name, value in options.items())
        base = f"http://{self.node.ready['http']}/{self.name}/_design/d/_view/v"
        with urllib.request.urlopen(f"{base}?{words}", timeout=30) as answer:
            return json.loads(answer.read())["rows"]

    def rows(self, **options):
        """Return the rows that the view has, as (key, id, value)."""
        rows = self.view(reduce=False, update=False, **options)
        return [(row["key"], row["id"], row["value"]) for row in rows]

    def right_rows(self):
        """Return the rows that it should have."""
        rows = [
            (document.get("kind"), key, document["n"])
            for key, document in self.documents.items()
            if document is not None and not document.get("bad")
        ]
        return sorted(rows, key=lambda row: (row[0] or "", row[1]))

    def check(self):
        assert self.rows() == self.right_rows()


def here(spec, tasks):
    """Run tasks in this process."""
    return [run_task(spec, task) for task in tasks]


def catch_up(writer):
    """Cycle until there is nothing new; return the commits."""
    done = []
    while (cycle := writer.cycle()) is not None:
        done.append(cycle)
        assert len(done) < 200, "it never ends"
    return done


@pytest.fixture(scope="session")
def index_node(tmp_path_factory):
    names = [f"--bucket=i{number}:{PARTITIONS}" for number in range(BUCKETS)]
    with NodeProcess(tmp_path_factory.mktemp("index") / "node", *names) as node:
        yield node


@pytest.fixture
def bucket(index_node, tmp_path):
    return Bucket(index_node, f"i{next(_numbers)}", tmp_path)


@pytest.fixture
def own_bucket(tmp_path):
    """A bucket of a node that a test may kill and start again at the same address."""
    options = ("--bucket=own:4", "--flush-interval", "600000", *kept_ports())
    with NodeProcess(tmp_path / "node", *options) as node:
        yield Bucket(node, "own", tmp_path)
