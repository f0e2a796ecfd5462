import time
from typing import Any

import pytest

from millstream.client import routing
from millstream.client.routing import Backoff, Router
from millstream.errors import AccessError, RoutingError, UnavailableError
from millstream.wire.cluster_map import NodeAddress
from millstream.wire.mcbp import Opcode, Status, request, response


def make(node: Any, *extra: tuple[str, int], timeout_s: float = 5) -> Router:
    return Router(
        [*extra, (node.host, node.port)],
        bucket="flights",
        user=None,
        password=None,
        timeout_s=timeout_s,
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
    until = time.monotonic() + 10
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
    router.close()


def test_an_owner_that_comes_later_is_found(node: Any) -> None:
    router = make(node)
    router.map = router.map._replace(owners=(-1,) * 8, revision=0)
    assert router.connection_of(3) is router.connection_to(router.map.nodes[0])
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
