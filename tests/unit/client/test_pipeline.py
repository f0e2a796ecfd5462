from collections import Counter
from typing import Any

import pytest

from millstream.client import pipeline
from millstream.errors import RemoteProtocolError, UnavailableError
from millstream.wire.cluster_map import NodeAddress
from millstream.wire.mcbp import Opcode, Packet, Status, response


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "IN_FLIGHT_MAX", 64)
    monkeypatch.setattr(pipeline, "_SEND_ITEMS", 16)


def test_every_item_once(node: Any, client: Any) -> None:
    result = client.apply_many((f"k{number}", {"n": number}) for number in range(1000))
    assert result == (1000, [])
    assert len(node.documents) == 1000


def test_large_items(node: Any, client: Any) -> None:
    documents = {f"k{number}": bytes(1_000_000) for number in range(20)}
    assert client.upsert_many(documents).done == 20
    assert client.get_many(documents)["k7"].data == bytes(1_000_000)


def test_later_write_of_a_key_wins_over_a_repeated_one(node: Any, client: Any) -> None:
    refused = Counter[bytes]()

    def sometimes(packet: Packet) -> bytes:
        if packet.value == b"1" and refused[packet.key] < 2:
            refused[packet.key] += 1
            return response(packet.opcode, Status.ETMPFAIL, packet.opaque)
        return node._set(packet)

    node.handlers[Opcode.SET] = sometimes
    changes = [(f"k{n % 10}", 1 if n < 10 else n) for n in range(20)] + [("once", 1)]
    assert client.apply_many(changes).done == 21
    assert node.documents[b"k3"][0] == b"13"
    assert node.documents[b"once"][0] == b"1"
    assert refused[b"k3"] == 1
    assert refused[b"once"] == 2


def test_items_refused_for_good(node: Any, client: Any) -> None:
    node.handlers[Opcode.SET] = lambda packet: (
        response(packet.opcode, Status.E2BIG, packet.opaque)
        if packet.key == b"k2"
        else node._set(packet)
    )
    result = client.apply_many((f"k{n}", n, n + 100) for n in range(4))
    assert result.done == 3
    assert [failure.item for failure in result.failures] == [("k2", 2, 102)]
    with pytest.raises(Exception, match="too large"):
        result.raise_first()


def test_still_refused_when_time_is_up(node: Any, client: Any) -> None:
    client._router.timeout_s = 0
    node.handlers[Opcode.SET] = lambda packet: response(
        packet.opcode, Status.ETMPFAIL, packet.opaque
    )
    assert [f.error.code for f in client.apply_many([("a", 1)]).failures] == ["busy"]


def test_while_refused_no_new_items_are_taken(node: Any, client: Any) -> None:
    taken, most, refused = 0, 0, 0

    def items() -> Any:
        nonlocal taken
        for taken in range(1, 2001):
            yield f"k{taken}", taken

    def full_at_first(packet: Packet) -> bytes:
        nonlocal most, refused
        if refused == 150:
            return node._set(packet)
        most, refused = taken, refused + 1
        return response(packet.opcode, Status.ETMPFAIL, packet.opaque)

    node.handlers[Opcode.SET] = full_at_first
    assert client.apply_many(items()) == (2000, [])
    assert len(node.documents) == 2000
    assert most <= 2 * pipeline.IN_FLIGHT_MAX


def test_time_is_up_once_unless_something_is_done(
    node: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client._router.timeout_s = 0.02
    begun: list[float] = []

    class Counted(pipeline.Backoff):
        def __init__(self, timeout_s: float) -> None:
            super().__init__(timeout_s)
            begun.append(timeout_s)

    monkeypatch.setattr(pipeline, "Backoff", Counted)
    node.handlers[Opcode.SET] = lambda packet: response(
        packet.opcode, Status.ETMPFAIL, packet.opaque
    )
    result = client.apply_many((f"k{number}", 1) for number in range(300))
    assert [failure.item[0] for failure in result.failures] == [f"k{n}" for n in range(300)]
    assert len(begun) == 1
    client._router.timeout_s = 60
    seen = Counter[bytes]()

    def every_other(packet: Packet) -> bytes:
        seen[packet.key] += 1
        if seen[packet.key] % 2:
            return response(packet.opcode, Status.ETMPFAIL, packet.opaque)
        return node._set(packet)

    node.handlers[Opcode.SET] = every_other
    assert client.apply_many((f"k{number}", 1) for number in range(300)) == (300, [])
    assert len(begun) > 3


def test_lost_connection_is_told_and_the_next_call_connects(node: Any, client: Any) -> None:
    node.handlers[Opcode.SET] = lambda packet: None
    with pytest.raises(UnavailableError):
        client.apply_many((f"k{n}", n) for n in range(100))
    node.handlers[Opcode.SET] = node._set
    assert client.apply_many([("a", 1)]).done == 1


def test_error_of_the_callers_items_leaves_no_stray_replies(node: Any, client: Any) -> None:
    def items() -> Any:
        yield from ((f"k{n}", n) for n in range(40))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.apply_many(items())
    assert client.get("nothing") is None


def test_reply_to_nobody(node: Any, client: Any) -> None:
    node.handlers[Opcode.SET] = lambda packet: response(packet.opcode, 0, packet.opaque + 77)
    with pytest.raises(RemoteProtocolError):
        client.apply_many([("a", 1)])


def gone(client: Any, owner: int) -> Any:
    """The client's map with a node that is gone before the one that lives."""
    router = client._router
    nodes = (NodeAddress("127.0.0.1", 1), router.map.nodes[0])
    return router.map._replace(nodes=nodes, owners=(owner,) * 8, revision=owner)


def test_what_is_for_a_node_that_is_gone_is_sent_to_the_one_in_its_place(
    node: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, asked = client._router, []
    router.map = gone(client, 0)

    def refresh_map() -> None:
        asked.append(1)
        if len(asked) == 1:
            raise UnavailableError("nobody answers")
        router.map = router.map._replace(owners=(1,) * 8)

    monkeypatch.setattr(router, "refresh_map", refresh_map)
    changes = [("k", 1), ("k", 2), ("other", 1)]
    assert client.apply_many(changes) == (3, [])
    assert node.documents[b"k"][0] == b"2"
    assert len(asked) == 2


def test_a_node_that_is_gone_for_too_long_is_an_error_that_names_it(client: Any) -> None:
    client._router.map = gone(client, 0)
    client._router.timeout_s = 0
    with pytest.raises(UnavailableError, match=r"cannot connect to 127\.0\.0\.1:1"):
        client.apply_many([("k", 1)])
