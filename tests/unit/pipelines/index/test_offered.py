"""Builds that nodes offer, taken; nodes and writers are false."""

import threading

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index import offered as module
from millstream.pipelines.index.mapping import MapSpec
from millstream.pipelines.index.offered import ASK_S, TELL_S, OfferedBuilds
from millstream.pipelines.index.shard import IndexAddress
from millstream.pipelines.index.writer import Cycle
from millstream.views.core.index.offers import ATTACHED_S, OFFER_S
from millstream.wire.cluster_map import ClusterMap, NodeAddress
from support.node.waiting import until

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
        self.may_answer = threading.Event()
        """Set: the node whose offers are "frozen" answers."""

    def partition_of(self, key):
        return 0

    def refresh_map(self):
        if self.is_away:
            raise UnavailableError("away")

    def offers_at(self, node, building, timeout_s):
        assert timeout_s == module.TELL_S
        if self.offers[node.host] == "frozen":
            assert self.may_answer.wait(60)
            return []
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
                assert world.may_go_on.wait(60)
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
    world.may_answer.set()


def test_what_is_offered_is_built_one_at_a_time_by_node(world):
    builds = world.builds()
    builds.ask(None)
    assert world.asked == [("a", []), ("b", [])]
    world.offers = {"a": ["d", "e"], "b": ["d"]}
    builds.ask(None)
    world.asked.clear()
    builds.ask(None)
    assert not world.asked, "nothing more is begun for them"
    world.may_go_on.set()
    builds.join(60)
    assert sorted(world.built) == [("a", "d"), ("b", "d")]
    world.offers = {"a": ["e"], "b": []}
    builds.ask(None)
    assert world.asked[-2:] == [("a", []), ("b", [])]
    builds.join(60)
    assert world.built[-1] == ("a", "e")


def test_a_failed_build_is_abandoned_and_reported_once(world):
    builds = world.builds()
    world.offers = {"a": ["strange"], "b": None}
    for _ in range(3):
        builds.ask(None)
        builds.join(60)
    assert world.failed == [("strange", "unknown_function")]
    world.offers = {"a": ["d"], "b": []}
    world.error = ConditionError("taken", code="not_spark_engine")
    builds.ask(None)
    builds.join(60)
    builds.ask(None)
    assert world.asked[-2:] == [("a", []), ("b", [])], "not built any more"
    assert world.failed[-1] == ("d", "not_spark_engine")
    builds.join(60)
    world.is_away = True
    world.asked.clear()
    builds.ask(None)
    assert world.asked == [("a", []), ("b", [])], "by the map that is known"


def test_a_node_hears_of_its_build_whatever_else_is_away_or_waits(world, monkeypatch):
    monkeypatch.setattr(module, "ASK_S", 0.001)
    builds = world.builds()
    world.offers = {"a": ["d"], "b": []}
    builds.ask(None)
    world.offers = {"a": ["d"], "b": "frozen"}
    asking = threading.Thread(target=builds.ask, args=(None,))
    asking.start()
    for _ in range(3):
        world.asked.clear()
        until(lambda: ("a", ["d"]) in world.asked)
    world.may_answer.set()
    asking.join()
    closing = threading.Thread(target=builds.join, args=(30,))
    closing.start()
    world.asked.clear()
    until(lambda: ("a", ["d"]) in world.asked)
    world.may_go_on.set()
    closing.join()
    assert world.built == [("a", "d")]


def test_the_pipeline_ends_on_request(world, monkeypatch):
    monkeypatch.setattr(module, "spark_tasks", lambda spark: None)
    world.close = lambda: world.asked.append("closed")
    builds = world.builds()
    thread = threading.Thread(target=builds.run, args=(None,))
    thread.start()
    until(lambda: world.asked)
    builds.is_stopping = True
    thread.join()
    assert world.asked[-1] == "closed"


def test_nodes_are_informed_in_time():
    assert min(OFFER_S, ATTACHED_S) > 3 * ASK_S
    assert ATTACHED_S > ASK_S + 2 * TELL_S, "to connect, and to answer"
