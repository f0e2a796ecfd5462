import time
from collections.abc import Callable
from typing import Any

import pytest

from millstream.client import routing
from millstream.client.routing import Backoff, Router
from millstream.errors import AccessError, RoutingError, UnavailableError
from millstream.wire.cluster_map import NodeAddress
from millstream.wire.mcbp import Opcode, Status, request, response


def make(node: Any, *extra: tuple[str, int]) -> Router:
    return Router(
        [*extra, (node.host, node.port)],
        bucket="flights",
        user=None,
        password=None,
        timeout_s=60,
        tls=None,
    )


def noop(connection: Any) -> Any:
    return connection.request(Opcode.NOOP)


def test_seeds_are_tried_in_turn(node: Any) -> None:
    router = make(node, ("127.0.0.1", 1))
    assert router.map.partition_count == 8
    router.close()


def test_no_seed_answers() -> None:
    with pytest.raises(UnavailableError, match=r"cannot connect to 127\.0\.0\.1:1"):
        Router([("127.0.0.1", 1)], bucket="b", user=None, password=None, timeout_s=1, tls=None)


def test_other_failures_end_the_search(node: Any) -> None:
    node.handlers[Opcode.SELECT_BUCKET] = lambda packet: response(
        packet.opcode, Status.EACCESS, packet.opaque
    )
    with pytest.raises(AccessError):
        make(node)


def test_one_connection_per_node_reopened_when_closed(node: Any) -> None:
    router = make(node)
    first = router.connection_of(0)
    assert router.connection_of(7) is first
    first.close()
    assert router.connection_of(0) is not first
    router.close()


def test_node_that_hung_up_meanwhile_is_connected_to_again(node: Any) -> None:
    node.handlers[Opcode.QUITQ] = lambda packet: None
    router = make(node)
    first = router.connection_of(0)
    first.send(request(Opcode.QUITQ))
    until = time.monotonic() + 60
    while not first.has_ended:
        assert time.monotonic() < until
    second = router.connection_of(0)
    assert second is not first
    assert second.request(Opcode.NOOP).status == Status.UNKNOWN_COMMAND
    router.close()


def test_not_mine_is_asked_again_with_a_new_map(node: Any) -> None:
    router = make(node)
    answers = iter([Status.NOT_MY_VBUCKET, Status.ETMPFAIL, Status.SUCCESS])
    node.handlers[Opcode.NOOP] = lambda packet: response(
        packet.opcode, next(answers), packet.opaque
    )
    node.revision = 2
    assert router.call(0, noop).status == Status.SUCCESS
    assert router.map.version == (1, 2)
    node.revision = 1
    router.refresh_map()
    assert router.map.version == (1, 2)
    router.close()


def test_the_last_answer_is_returned_when_time_is_up(node: Any) -> None:
    router = make(node)
    router.timeout_s = 0.0
    node.handlers[Opcode.NOOP] = lambda packet: response(
        packet.opcode, Status.ETMPFAIL, packet.opaque
    )
    assert router.call(0, noop).status == Status.ETMPFAIL
    router.close()


def test_partition_without_owner(node: Any) -> None:
    router = make(node)
    router.map = router.map._replace(owners=(0, -1))
    assert router.groups([0, 1]) == {NodeAddress(node.host, node.port): [0]}
    with pytest.raises(RoutingError, match="no node serves partition 1"):
        router.connection_of(1)
    with pytest.raises(RoutingError, match="no node serves partition 1"):
        router.groups([0, 1], is_whole=True)
    router.close()


def test_an_owner_that_comes_later_is_found(node: Any) -> None:
    router = make(node)
    router.map = router.map._replace(owners=(-1,) * 8, revision=0)
    assert router.connection_of(3) is router.connection_to(router.map.nodes[0])
    router.map = router.map._replace(owners=(-1,) * 8, revision=0)
    assert router.groups([3, 4], is_whole=True) == {router.map.nodes[0]: [3, 4]}
    router.close()


def test_a_request_waits_for_a_map_that_names_a_node(node: Any) -> None:
    router = make(node)
    named = router.map
    maps = [named._replace(owners=(-1,) * 8)] * 4 + [named]
    router.map = maps[0]

    def refresh() -> None:
        router.map = maps.pop(0)

    router.refresh_map = refresh  # type: ignore[method-assign]
    assert router.call(3, noop).status == Status.UNKNOWN_COMMAND
    assert not maps
    router.close()


def test_a_request_waits_for_such_a_map_for_a_bounded_time(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "NOBODY_S_MAX", 0.05)
    router = make(node)
    router.map = router.map._replace(owners=(-1,) * 8)
    with pytest.raises(RoutingError):
        router.call(3, noop)
    router.close()


def test_pauses_grow_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(routing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(routing.time, "sleep", sleep)
    backoff = Backoff(3.0)
    while backoff.wait():
        pass
    assert pauses == sorted(pauses)
    assert max(pauses) <= routing.PAUSE_S_MAX
    assert now[0] <= 3.0


def test_the_next_server_of_a_partition_is_looked_for_at_short_intervals(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    node.config = config_of(1, 0, ("127.0.0.1", 1), (node.host, node.port))
    router = make(node)
    router.timeout_s = 3.0
    monkeypatch.setattr(routing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(routing.time, "sleep", sleep)
    with pytest.raises(UnavailableError):
        router.call(3, noop)
    assert max(pauses) == routing.REROUTE_S_MAX
    assert now[0] > 3.0 - routing.REROUTE_S_MAX
    router.close()


def test_pauses_are_short_again_after_a_newer_map(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(routing.time, "sleep", pauses.append)
    statuses = [Status.ETMPFAIL] * 3 + [Status.NOT_MY_VBUCKET, Status.ETMPFAIL, Status.SUCCESS]

    def answer(packet: Any) -> Any:
        status = statuses.pop(0)
        if status == Status.NOT_MY_VBUCKET:
            node.config = config_of(2, 0, (node.host, node.port))
        return response(packet.opcode, status, packet.opaque)

    node.handlers[Opcode.NOOP] = answer
    node.config = config_of(1, 0, (node.host, node.port))
    router = make(node)
    assert router.call(3, noop).status == Status.SUCCESS
    assert pauses == [routing.PAUSE_S_MIN * 2**n for n in (0, 1, 2, 3, 0)]
    router.close()


# -- several nodes


@pytest.fixture
def other(make_fake_node: Callable[[], Any]) -> Any:
    return make_fake_node()


def config_of(revision: int, owner: int, *addresses: tuple[str, int]) -> dict[str, Any]:
    nodes = [{"hostname": host, "services": {"kv": port}} for host, port in addresses]
    return {
        "rev": revision,
        "revEpoch": 1,
        "nodesExt": nodes,
        "vBucketServerMap": {"vBucketMap": [[owner]] * 8},
    }


def test_a_node_that_is_gone_is_asked_no_more_once_another_has_its_place(node: Any) -> None:
    addresses = (("127.0.0.1", 1), (node.host, node.port))
    maps = iter([config_of(1, 0, *addresses), config_of(1, 0, *addresses)])
    node.handlers[Opcode.NOOP] = lambda packet: response(packet.opcode, 0, packet.opaque)
    answer = node.handlers[Opcode.GET_CLUSTER_CONFIG]

    def next_map(packet: Any) -> Any:
        node.config = next(maps, config_of(2, 1, *addresses))
        return answer(packet)

    node.handlers[Opcode.GET_CLUSTER_CONFIG] = next_map
    router = make(node)
    assert router.map.owners == (0,) * 8
    assert router.call(3, noop).status == 0
    assert router.map.owners == (1,) * 8
    router.close()


def test_an_older_map_does_not_hide_a_newer_one(node: Any, other: Any) -> None:
    addresses = ((node.host, node.port), (other.host, other.port))
    node.config = config_of(1, 0, *addresses)
    other.config = config_of(2, 1, *addresses)
    router = make(node)
    assert router.map.version == (1, 1)
    router.refresh_map()
    assert router.map.version == (1, 2)
    router.refresh_map()
    assert router.map.version == (1, 2)
    router.close()


def test_where_nobody_answers_that_is_told_when_time_is_up(node: Any) -> None:
    node.config = config_of(1, 0, ("127.0.0.1", 1), ("127.0.0.1", 2))
    router = make(node)
    router.timeout_s = 0.02
    router.close()
    node.stop()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        router.call(0, noop)
    with pytest.raises(UnavailableError, match="cannot connect"):
        router.refresh_map()


def test_who_is_alone_is_not_waited_for(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    router = make(node)
    router.close()
    node.stop()
    monkeypatch.setattr(routing.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(UnavailableError, match="cannot connect"):
        router.call(0, noop)
