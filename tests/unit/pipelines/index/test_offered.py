"""Builds that nodes offer, taken; nodes and writers are false."""

import threading

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.pipelines.index import offered as module
from millstream.pipelines.index.mapping import MapSpec
from millstream.pipelines.index.offered import ASK_S, OfferedBuilds
from millstream.pipelines.index.shard import IndexAddress
from millstream.pipelines.index.writer import Cycle
from millstream.pipelines.options import parse_options
from millstream.views.core.offers import ATTACHED_S, OFFER_S
from millstream.wire.cluster_map import ClusterMap, NodeAddress
from waiting import until

NODES = (NodeAddress("a", 1), NodeAddress("b", 2))


class World:
    """Two nodes that offer, and what was asked and built."""

    cluster_map = ClusterMap(1, 1, NODES, (0, 1), {}, "u", NODES[0], (8, 9))

    def __init__(self):
        self.offers = {"a": [], "b": []}
        self.asked = []
        self.built, self.failed = [], []
        self.may_go_on = threading.Event()
        self.error = None
        self.is_away = False

    def partition_of(self, key):
        return 0

    def refresh_map(self):
        if self.is_away:
            raise UnavailableError("away")

    def offers_at(self, node, building):
        if self.offers[node.host] is None:
            raise UnavailableError("away")
        self.asked.append((node.host, building))
        return self.offers[node.host]

    def spec_of(self, client, source, name, modules):
        assert source.hosts == "c:3,a:1,b:2"
        if name == "strange":
            raise UsageError("no such function", code="unknown_function")
        address = IndexAddress(host="x", port=1, bucket="b", design=name)
        return MapSpec(source, address, "u", b"{}", "s", 0, False)

    def writer(self, spec, run_tasks, *, name, task_count):
        world = self

        class Writer:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def take_over(self):
                if world.error is not None:
                    raise world.error

            def cycle(self, *, is_build):
                assert is_build
                assert world.may_go_on.wait(30)
                return Cycle(None, 1, 1, True)

        return Writer()

    def builds(self):
        return OfferedBuilds(
            parse_options({"bucket": "b", "hosts": "c:3"}),
            lambda address, cycle, seconds: self.built.append((address.host, address.design)),
            lambda address, error: self.failed.append((address.design, error.code)),
        )


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(module, "open_client", lambda source: world)
    monkeypatch.setattr(module, "offers_at", world.offers_at)
    monkeypatch.setattr(module, "offered_spec", world.spec_of)
    monkeypatch.setattr(module, "IndexWriter", world.writer)
    yield world
    world.may_go_on.set()


def test_what_is_offered_is_built_one_at_a_time_by_node(world):
    builds = world.builds()
    builds.ask(None)
    assert world.asked == [("a", []), ("b", [])]
    world.offers = {"a": ["d", "e"], "b": ["d"]}
    builds.ask(None)
    world.asked.clear()
    builds.ask(None)
    assert world.asked == [("a", ["d"]), ("b", ["d"])], "it says what it builds"
    world.may_go_on.set()
    builds.join(30)
    assert sorted(world.built) == [("a", "d"), ("b", "d")]
    world.offers = {"a": ["e"], "b": []}
    builds.ask(None)
    assert world.asked[-2:] == [("a", []), ("b", [])]
    builds.join(30)
    assert world.built[-1] == ("a", "e")


def test_what_fails_is_given_up_and_told_once(world):
    builds = world.builds()
    world.offers = {"a": ["strange"], "b": None}
    for _ in range(3):
        builds.ask(None)
    assert world.failed == [("strange", "unknown_function")]
    world.offers = {"a": ["d"], "b": []}
    world.error = ConditionError("taken", code="not_spark_engine")
    builds.ask(None)
    builds.join(30)
    builds.ask(None)
    assert world.asked[-2:] == [("a", []), ("b", [])], "not built any more"
    assert world.failed[-1] == ("d", "not_spark_engine")
    world.is_away = True
    builds.ask(None)


def test_it_ends_when_it_is_asked_to(world, monkeypatch):
    monkeypatch.setattr(module, "spark_tasks", lambda spark: None)
    world.close = lambda: world.asked.append("closed")
    builds = world.builds()
    thread = threading.Thread(target=builds.run, args=(None,))
    thread.start()
    until(lambda: world.asked)
    builds.is_stopping = True
    thread.join()
    assert world.asked[-1] == "closed"


def test_nodes_hear_of_it_in_time():
    assert min(OFFER_S, ATTACHED_S) > 3 * ASK_S
