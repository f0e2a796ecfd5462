from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from millstream.client.extensions import LeaseHold, PartitionPosition
from millstream.errors import (
    AccessError,
    RoutingError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.partitions import PartitionState
from millstream.pipelines.change_stream import control
from millstream.pipelines.change_stream.control import LeaseKeeper, NodeControl
from millstream.pipelines.change_stream.options import SourceOptions
from support.pipelines.node_double import FalseClient, FalseNode

OPTIONS = SourceOptions(hosts="h", bucket="b")
AT_ONCE = SourceOptions(hosts="h", bucket="b", reconnect_s=0)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FalseClient:
    client = FalseClient(FalseNode(3))
    monkeypatch.setattr(control, "open_client", lambda _: client)
    return client


def test_all_partitions_are_read_unless_some_are_named(client: FalseClient) -> None:
    assert NodeControl(OPTIONS).partition_ids == (0, 1, 2)
    some = NodeControl(SourceOptions(hosts="h", bucket="b", partition_ids=(0, 2)))
    assert list(some.positions()) == [0, 2]
    assert some.bucket_uuid == client.bucket_uuid


@pytest.mark.usefixtures("client")
def test_a_partition_that_the_bucket_lacks_is_an_error() -> None:
    with pytest.raises(UsageError, match="has the partitions 0 to 2, not 3"):
        NodeControl(SourceOptions(hosts="h", bucket="b", partition_ids=(1, 3)))


def test_a_node_that_restarts_is_asked_again(client: FalseClient) -> None:
    node_control = NodeControl(OPTIONS)
    client.failures = [UnavailableError("away"), UnavailableError("away")]
    assert len(node_control.positions()) == 3
    assert client.calls == ["positions", "refresh_map"] * 2 + ["positions"]


def test_with_no_reconnect_timeout_a_node_that_is_away_is_an_error(client: FalseClient) -> None:
    node_control = NodeControl(AT_ONCE)
    client.failures = [UnavailableError("away")]
    with pytest.raises(UnavailableError, match="away"):
        node_control.failover_log(0)


def test_other_errors_are_raised_at_once(client: FalseClient) -> None:
    node_control = NodeControl(OPTIONS)
    client.failures = [AccessError("no")]
    with pytest.raises(AccessError):
        node_control.positions()


def test_errors_of_a_log_in_say_what_to_do(
    client: FalseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> FalseClient:
        raise AccessError("no such bucket", code="unknown_bucket")

    node_control = NodeControl(OPTIONS)
    client.failures = [AccessError("does not accept user 'u'", code="bad_credentials")]
    with pytest.raises(AccessError, match=r"user 'u'\. If it was changed .* passwordFile"):
        node_control.positions()
    monkeypatch.undo()
    monkeypatch.setattr(control, "connect", refuse)
    with pytest.raises(AccessError, match="dropped while a query ran") as refused:
        control.open_again(OPTIONS)
    assert str(refused.value).count("dropped") == 1


def test_leases_are_opened_renewed_and_released(client: FalseClient) -> None:
    node_control = NodeControl(OPTIONS)
    held = node_control.open_lease([0, 1])
    lease_id = held[0].lease_id
    assert sorted(node_control.renew_lease(lease_id, [0, 1])) == [0, 1]
    node_control.release_lease(lease_id, [0])
    assert sorted(node_control.renew_lease(lease_id, [0, 1])) == [1]
    node_control.close()
    assert client.is_closed


def test_a_partition_that_moves_while_it_is_leased_is_asked_for_where_it_is_then(
    client: FalseClient,
) -> None:
    node_control = NodeControl(OPTIONS)
    client.failures = [StreamError("dead here", code="lease_lost")]
    with pytest.raises(StreamError, match="dead here"):
        node_control.open_lease([0])  # one node alone: it cannot have moved
    client.nodes = ("here", "there")
    client.calls.clear()
    client.failures = [StreamError("dead here", code="lease_lost"), UnavailableError("away")]
    assert node_control.open_lease([0])[0].partition_id == 0
    assert client.calls == ["open_lease", "refresh_map"] * 2 + ["open_lease"]
    client.failures = [StreamError("another", code="unknown_branch")]
    with pytest.raises(StreamError, match="another"):
        node_control.open_lease([0])
    client.failures = [StreamError("dead here", code="lease_lost")]
    with pytest.raises(UnavailableError, match="a partition moves: dead here") as moving:
        NodeControl(OPTIONS, waits=False).open_lease([0])
    assert moving.value.retry != "never", "the caller waits"


class Unknown(FalseNode):
    """Knows of some partitions only after a few requests what of them is durable."""

    def __init__(self, rounds: int) -> None:
        super().__init__(3)
        self.rounds = rounds
        for p in (0, 1):
            self.write(p, 1, 1)
        self.partitions[0].durable_seqno = 0

    def positions(self) -> Mapping[int, PartitionPosition]:
        self.rounds -= 1
        if self.rounds < 0:
            self.partitions[0].durable_seqno = 1
        return super().positions()

    def open_lease(self, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        positions = super().positions()
        known = [p for p in partition_ids if positions[p].durable_seqno]
        return super().open_lease(known) if known else {}


def test_durable_positions_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    durable = SourceOptions(hosts="h", bucket="b", is_durable_only=True)
    monkeypatch.setattr(FalseClient, "nodes", ("here", "there"))
    for rounds in (0, 2):
        monkeypatch.setattr(control, "open_client", lambda _, n=rounds: FalseClient(Unknown(n)))
        assert sorted(NodeControl(durable).open_whole_lease([0, 1, 2])) == [0, 1]
        assert NodeControl(durable).positions_known()[0].durable_seqno == 1
    monkeypatch.setattr(control, "open_client", lambda _: FalseClient(Unknown(9**9)))
    assert NodeControl(OPTIONS).positions_known()[0].durable_seqno == 0
    node_control = NodeControl(durable, waits=False)
    for ask in (lambda: node_control.open_whole_lease([0, 1, 2]), node_control.positions_known):
        with pytest.raises(UnavailableError, match=r"durable in the partitions \[0\]") as caught:
            ask()
        assert caught.value.code == "durable_unknown"


def test_a_bucket_on_one_node_knows_that_nothing_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "open_client", lambda _: FalseClient(Unknown(9**9)))
    alone = NodeControl(SourceOptions(hosts="h", bucket="b", is_durable_only=True))
    assert sorted(alone.open_whole_lease([0, 1, 2])) == [1]
    assert alone.positions_known()[0].durable_seqno == 0


def test_an_end_that_cannot_be_read_is_replaced_by_the_high(client: FalseClient) -> None:
    node_control = NodeControl(OPTIONS)
    assert node_control.open_lease_at({0: 0})[0].at == 0
    assert node_control.open_lease_at({0: 7})[0].at == 0


def test_open_client_hands_the_options_over(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    client = FalseClient(FalseNode(1))
    monkeypatch.setattr(
        control, "connect", lambda hosts, **more: given.update(more, hosts=hosts) or client
    )
    options = SourceOptions(hosts="h:1", bucket="b", user="u", password="p", reconnect_s=7)
    assert control.open_client(options).reconnect_s == 7
    assert given == {"hosts": "h:1", "bucket": "b", "user": "u", "password": "p", "tls": None}


class Turns:
    """What a keeper renews; tells when it has asked often enough."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.done = threading.Event()

    def __call__(self) -> dict[int, list[int]]:
        self.left -= 1
        if self.left <= 0:
            self.done.set()
        return {9: [0]}


def test_a_keeper_renews_until_it_is_stopped(client: FalseClient) -> None:
    turns = Turns(3)
    keeper = LeaseKeeper(OPTIONS, turns, every_s=0.001)
    assert turns.done.wait(60)
    keeper.stop()
    assert client.calls.count("renew_lease") >= 2
    count = len(client.calls)
    assert client.is_closed
    assert len(client.calls) == count


def test_a_keeper_survives_a_node_that_is_away(
    client: FalseClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.failures = [UnavailableError("away")]
    turns = Turns(3)
    keeper = LeaseKeeper(OPTIONS, turns, every_s=0.001)
    assert turns.done.wait(60)
    keeper.stop()
    assert "leases were not renewed: away" in capsys.readouterr().err


def test_a_keeper_renews_leases_of_reachable_nodes(
    client: FalseClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "owners", [0, 1, 1])
    asked: list[tuple[int, list[int]]] = []

    def renew(lease_id: int, partition_ids: Sequence[int]) -> dict[int, LeaseHold]:
        asked.append((lease_id, list(partition_ids)))
        if 0 in partition_ids:
            raise UnavailableError("away")
        return {}

    monkeypatch.setattr(client, "renew_lease", renew)
    turns = [{9: [0, 1], 8: [2, 0], 7: [1]}]
    is_over = threading.Event()

    def once() -> dict[int, list[int]]:
        if turns:
            return turns.pop()
        is_over.set()
        return {}

    keeper = LeaseKeeper(OPTIONS, once, every_s=0.001)
    assert is_over.wait(60)
    keeper.stop()
    assert sorted(asked) == [(7, [1]), (8, [2]), (9, [0]), (9, [1])], "it is asked once"
    assert "leases were not renewed: away" in capsys.readouterr().err


def test_a_dead_node_does_not_hold_up_the_end_of_a_keeper(
    client: FalseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "STOP_S", 0.01)
    asked, comes_back = threading.Event(), threading.Event()

    def silent(*_: object) -> dict[int, LeaseHold]:
        asked.set()
        comes_back.wait(60)
        return {}

    monkeypatch.setattr(client, "renew_lease", silent)
    keeper = LeaseKeeper(OPTIONS, lambda: {9: [0]}, every_s=0.001)
    assert asked.wait(60)
    keeper.stop()
    assert not comes_back.is_set()
    comes_back.set()
    keeper._thread.join(60)
    assert not keeper._thread.is_alive()


def test_a_keeper_without_leases_sends_nothing(client: FalseClient) -> None:
    asked = threading.Event()

    def nothing() -> dict[int, list[int]]:
        asked.set()
        return {}

    keeper = LeaseKeeper(OPTIONS, nothing, every_s=0.001)
    assert asked.wait(60)
    keeper.stop()
    assert client.calls == []


def test_partitions_that_move_are_asked_for_where_they_are_by_then(
    client: FalseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_control = NodeControl(OPTIONS)
    client.nodes = ("here", "there")
    client.failures = [RoutingError("moved")]
    present = client.positions
    answers = [0]

    def moving(partition_ids: Sequence[int] | None = None) -> list[PartitionPosition]:
        found = present(partition_ids)
        answers[0] += 1
        if answers[0] < 3:
            found[0] = found[0]._replace(state=PartitionState.DEAD)
        return found

    monkeypatch.setattr(client, "positions", moving)
    assert {at.state for at in node_control.positions().values()} == {PartitionState.ACTIVE}
    assert answers == [3]
    answers[0] = 0
    with pytest.raises(UnavailableError, match=r"not active .*: 0 \(dead at ") as refused:
        NodeControl(AT_ONCE).positions()
    assert refused.value.code == "partition_inactive"


class SpreadClient(FalseClient):
    """Partitions on two nodes by number, even and odd; `away` answer nothing."""

    def __init__(self) -> None:
        super().__init__(FalseNode(4))
        self.owners = (0, 1, 0, 1)
        self.away: set[int] = set()

    def positions(self, partition_ids: Sequence[int] | None = None) -> list[PartitionPosition]:
        assert partition_ids is not None
        if any(self.owners[p] in self.away for p in partition_ids):
            raise UnavailableError("away")
        return super().positions(partition_ids)

    def release_lease(self, lease_id: int, partition_ids: Sequence[int]) -> None:
        raise UnavailableError("away")


def test_partitions_of_a_node_that_is_away_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SpreadClient()
    monkeypatch.setattr(control, "open_client", lambda _: client)
    node_control = NodeControl(OPTIONS)
    assert sorted(node_control.positions_now([0, 1, 2])) == [0, 1, 2]
    assert client.calls.count("refresh_map") == 0
    client.away = {1}
    assert sorted(node_control.positions_now([0, 1, 2, 3])) == [0, 2]
    assert client.calls.count("refresh_map") == 1
    with pytest.raises(UnavailableError):
        node_control.positions_now([1, 3])
    assert node_control.positions_now([]) == {}
    node_control.let_go(1, [0])
