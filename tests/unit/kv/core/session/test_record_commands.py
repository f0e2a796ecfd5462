"""EXCHANGE_RECORDS as a source answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from millstream.kv.core.copies.record_exchange import (
    Exchange,
    exchange_from_json,
    exchange_request,
    exchange_to_json,
)
from millstream.kv.core.session.session import KvSession
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.wire.mcbp import Opcode, Packet, Status, request
from support.kv.session_double import HostDouble, UserDouble, ask, new_session

RECORD = DataRecord(MapKey(2, 5), "a", 1, (("a", "b"),))
NEWER = replace(RECORD, at=MapKey(2, 6), building=("c",))


class RecordHost(HostDouble):
    """Keeps what was asked for until the test answers."""

    def __init__(self, *, is_managed: bool = True) -> None:
        super().__init__()
        self.bucket = self.buckets["b"]
        self.asked: list[tuple[Mapping[int, DataRecord], Callable[[Status], None]]] = []
        if is_managed:
            self.bucket.set_records([RECORD] * self.bucket.partition_count, "a")

    def adopt(
        self,
        session: KvSession,
        records: Mapping[int, DataRecord],
        done: Callable[[Status], None],
    ) -> None:
        self.asked.append((records, done))


def session_on(host: RecordHost) -> KvSession:
    session = new_session(host)
    ask(session, request(Opcode.HELLO, value=b"\xff\x00"))
    return session


def exchanged(host: RecordHost, records: dict[int, DataRecord], **branches: int) -> list[Packet]:
    told = Exchange(records, {int(name[1:]): branch for name, branch in branches.items()})
    return ask(session_on(host), exchange_request(told, 7))


def test_records_that_are_no_news_are_answered_with_those_of_the_source() -> None:
    host = RecordHost()
    (reply,) = exchanged(host, {0: RECORD, 2: replace(RECORD, at=MapKey(2, 4))})
    assert reply.vbucket == Status.SUCCESS
    assert exchange_from_json(reply.value).records == {0: RECORD, 2: RECORD}
    assert host.asked == []


def test_newer_records_are_adopted_durably_before_the_answer() -> None:
    host = RecordHost()
    session = session_on(host)
    told = Exchange({0: RECORD, 1: NEWER})
    assert ask(session, exchange_request(told, 7) + request(Opcode.NOOP, opaque=8)) == []
    (records, done), *others = host.asked
    assert (records, others) == ({1: NEWER}, [])
    host.bucket.use_records(records)
    done(Status.SUCCESS)
    first, second = ask(session, b"")
    assert (first.opaque, second.opaque) == (7, 8)
    assert exchange_from_json(first.value).records == told.records


def test_another_content_of_a_known_key_is_left_to_the_adoption_to_refuse() -> None:
    host = RecordHost()
    session = session_on(host)
    other = replace(RECORD, active="b")
    assert ask(session, exchange_request(Exchange({0: other}), 7)) == []
    assert host.asked[0][0] == {0: other}
    host.asked[0][1](Status.ETMPFAIL)
    (reply,) = ask(session, b"")
    assert reply.vbucket == Status.ETMPFAIL


def test_a_promise_above_the_branch_that_is_served_is_heard() -> None:
    host = RecordHost()
    served = host.bucket.partitions[1].failover_log[0].branch
    exchanged(host, {}, p0=served, p1=served + 4)
    exchanged(host, {}, p1=served + 3)
    assert host.bucket.heard == {1: served + 4}


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (request(Opcode.EXCHANGE_RECORDS, value=b"{"), Status.EINVAL),
        (exchange_request(Exchange({9999: RECORD}), 7), Status.EINVAL),
        (exchange_request(Exchange({}, {-1: 3}), 7), Status.EINVAL),
        (request(Opcode.EXCHANGE_RECORDS, key=b"k", value=exchange_to_json(Exchange({}))),
         Status.EINVAL),
        (request(Opcode.EXCHANGE_RECORDS, extras=b"1234", value=exchange_to_json(Exchange({}))),
         Status.EINVAL),
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused(frame: bytes, status: Status) -> None:
    (reply,) = ask(session_on(RecordHost()), frame)
    assert reply.vbucket == status


def test_only_nodes_of_a_managed_cluster_exchange_records() -> None:
    frame = exchange_request(Exchange({}), 7)
    (reply,) = ask(session_on(RecordHost(is_managed=False)), frame)
    assert reply.vbucket == Status.NOT_SUPPORTED
    host = RecordHost()
    session = session_on(host)
    host.users.is_empty = False  # type: ignore[misc]
    session.user = UserDouble("read", "stream", "write")  # type: ignore[assignment]
    (reply,) = ask(session, frame)
    assert reply.vbucket == Status.EACCESS
    (reply,) = ask(new_session(RecordHost()), frame)
    assert reply.vbucket == Status.UNKNOWN_COMMAND
    host = RecordHost()
    session = session_on(host)
    session.select(None)
    (reply,) = ask(session, frame)
    assert reply.vbucket == Status.NO_BUCKET
