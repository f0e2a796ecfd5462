"""`millstream pipeline run views` as a process of its own: killed, stopped, refused."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

import millstream
from millstream.client.databases import Database
from millstream.client.http import http_of
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index.setup import index_state_of
from support.pipelines.pipeline_process import PipelineProcess

DESIGN = {"engine": "spark", "views": {"v": {"map": "d => emit(d.g, d.n)", "reduce": "_sum"}}}


class Driver(PipelineProcess):
    """The pipeline's process and all it starts."""

    def __init__(self, node, tmp_path, *options):
        super().__init__(node, tmp_path, "views", "b", "--json", *options)

    def batches(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def wait_for(self, is_done):
        self.wait_until(lambda: is_done(self.batches()))


@pytest.fixture
def start(own_node, tmp_path):
    node = own_node("--bucket", "b:4")
    started = []

    def run(*options):
        started.append(Driver(node, tmp_path, *options))
        return started[-1]

    with millstream.connect(node.ready["kv"], bucket="b") as client:
        http = http_of(client, user=None, password="", tls=None, timeout_s=30.0)
        Database(http, "b").put("d", DESIGN)
        run.client = client
        yield run
    for driver in started:
        driver.kill()


def write(client, documents):
    client.apply_many(documents.items()).raise_first()


def sums(documents):
    found = defaultdict(int)
    for document in documents.values():
        if document is not None:
            found[document["g"]] += document["n"]
    return dict(found)


def view(driver, *options):
    answer = driver.call("view", "b", "d/v", "--group", "--json", *options)
    assert answer.returncode == 0, answer.stderr
    return {row["key"]: row["value"] for row in json.loads(answer.stdout)["rows"]}


@pytest.mark.slow
def test_listed_refused_killed_started_again_and_stopped(start):
    first = {f"k{n}": {"g": n % 5, "n": n} for n in range(600)}
    write(start.client, first)
    driver = start("--rows-per-commit", "150")
    driver.wait_for(lambda commits: any(commit["changes"] for commit in commits))
    (listed,) = json.loads(driver.call("pipeline", "list", "--json").stdout)
    assert (listed["name"], listed["is_running"]) == ("views-b-d", True)
    again = driver.call("pipeline", "run", "views", "b")
    assert again.returncode == 1
    assert "runs already" in again.stderr
    assert view(driver) == sums(first)

    second = {f"k{n}": {"g": 7, "n": 1} for n in range(0, 300, 3)}
    write(start.client, second)
    seen = len(driver.batches())
    driver.wait_for(lambda commits: len(commits) > seen)
    driver.kill()
    (listed,) = json.loads(driver.call("pipeline", "list", "--json").stdout)
    assert not listed["is_running"]

    third = {f"k{n}": None for n in range(200, 280)} | {"k0": {"g": 8, "n": 8}}
    write(start.client, third)
    driver = start("--rows-per-commit", "150")
    final = {key: value for key, value in (first | second | third).items() if value is not None}
    assert view(driver, "--timeout", "120000") == sums(final)
    source = parse_options({"hosts": driver.env["MILLSTREAM_CONNECT"], "bucket": "b"})
    assert index_state_of(source, "d").rows == [len(final)]
    assert driver.call("pipeline", "stop", "views-b-d").returncode == 0
    assert driver.end() == 0, driver.log.read_text()[-3000:]
    (listed,) = json.loads(driver.call("pipeline", "list", "--json").stdout)
    assert not listed["is_running"]
    assert view(driver, "--update", "false") == sums(final)
