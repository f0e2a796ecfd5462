"""A copy of a managed cluster acknowledges to no source with an older record."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from millstream.kv.core.copies.record_exchange import exchange_from_json
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.serving_rights import Right
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets
from support.kv.feed_rig import Rig

RECORD = DataRecord(MapKey(2, 5), "there", 1, (("there", "here"),))
NEWER = replace(RECORD, at=MapKey(2, 6), building=("x",))


class Agreeing(Rig):
    """The nodes `there` and `here`; what the copy sends is recorded."""

    def __init__(self, source: DataRecord | None, copy: DataRecord | None) -> None:
        self.sent: list[Packet] = []
        super().__init__(random.Random(3), count=1)
        for node, name, record in (
            (self.source, "there", source), (self.copy, "here", copy),
        ):  # fmt: skip
            if record is not None:
                node.bucket.set_records([record], name)
        self.sent.clear()
        self.connect()

    def check_told(self, data: bytes) -> None:
        super().check_told(data)
        self.sent += cut_packets(data, 1 << 20)[0]

    def count_of(self, opcode: Opcode) -> int:
        return sum(packet.opcode == opcode for packet in self.sent)

    def write_and_settle(self) -> None:
        for _ in range(5):
            self.write(0)
        self.settle()

    def adopt(self, failure: str = "") -> None:
        """Do what was asked for first, as a shell does it."""
        records = self.adopts.pop(0).records
        if not failure:
            self.copy.bucket.use_records(records)
        self.feed.on_adopted(records, failure)
        self.carry_out()


def test_without_records_nothing_is_exchanged() -> None:
    rig = Agreeing(None, None)
    rig.write_and_settle()
    rig.check_equal()
    assert rig.count_of(Opcode.EXCHANGE_RECORDS) == 0


def test_with_equal_records_one_exchange_comes_before_the_stream() -> None:
    rig = Agreeing(RECORD, RECORD)
    rig.write_and_settle()
    rig.check_equal()
    asked = [packet.opcode for packet in rig.sent]
    assert asked.count(Opcode.EXCHANGE_RECORDS) == 1
    assert asked.index(Opcode.EXCHANGE_RECORDS) < asked.index(Opcode.DCP_STREAM_REQ)
    assert rig.host.told == []
    assert rig.acknowledged


def test_a_source_with_an_older_record_adopts_before_it_is_asked_for_a_stream() -> None:
    rig = Agreeing(RECORD, NEWER)
    rig.host.refusal = Status.ETMPFAIL
    for _ in range(200):
        rig.exchange()
    assert rig.host.told
    assert rig.count_of(Opcode.DCP_STREAM_REQ) == 0
    assert "0x86" in rig.feed.failure(0)
    rig.host.refusal = Status.SUCCESS
    rig.write_and_settle()
    assert rig.source.bucket.record(0) == NEWER
    rig.check_equal()


def test_a_copy_with_an_older_record_adopts_before_it_asks_for_a_stream() -> None:
    rig = Agreeing(NEWER, RECORD)
    for _ in range(200):
        rig.exchange()
    assert [one.records for one in rig.adopts] == [{0: NEWER}]
    assert rig.count_of(Opcode.DCP_STREAM_REQ) == 0
    rig.adopt("no space")
    assert rig.feed.failure(0) == "no space"
    rig.wait()
    for _ in range(200):
        rig.exchange()
    assert rig.count_of(Opcode.DCP_STREAM_REQ) == 0
    rig.adopt()
    rig.write_and_settle()
    rig.check_equal()


def test_a_copy_that_adopts_a_newer_record_acknowledges_only_after_an_exchange() -> None:
    rig = Agreeing(RECORD, RECORD)
    rig.write_and_settle()
    before = len(rig.acknowledged)
    rig.host.refusal = Status.ETMPFAIL
    rig.copy.bucket.use_records({0: NEWER})
    rig.feed.look(0)
    rig.carry_out()
    rig.write_and_settle()
    assert len(rig.acknowledged) == before
    assert rig.feed.is_streaming(0)
    assert rig.copy.bucket.partitions[0].high_seqno > 0
    rig.host.refusal = Status.SUCCESS
    rig.feed.ask_highs()
    rig.carry_out()
    rig.settle()
    assert rig.source.bucket.record(0) == NEWER
    assert len(rig.acknowledged) > before
    rig.check_equal()
    assert rig.count_of(Opcode.DCP_STREAM_REQ) == 1, "the stream goes on"


def test_a_source_hears_of_a_promise_above_the_branch_that_it_serves() -> None:
    rig = Agreeing(RECORD, RECORD)
    rig.settle()
    branch = rig.source.bucket.partitions[0].failover_log[0].branch
    assert rig.source.bucket.heard == {}
    rig.copy.promise(0, branch + 7)
    rig.connect()
    for _ in range(200):
        rig.exchange()
    assert rig.source.bucket.heard == {0: branch + 7}
    assert not rig.feed.is_streaming(0)


def test_a_copy_that_is_not_to_follow_any_more_asks_for_nothing() -> None:
    rig = Agreeing(RECORD, NEWER)
    rig.feed.leave(0)
    rig.write_and_settle()
    assert rig.count_of(Opcode.DCP_STREAM_REQ) == 0
    assert rig.waits == []


@pytest.mark.parametrize("value", [b"", b"{", b'{"records":{"0":{"at":[2]}}}', b'{"records":{}}'])
def test_a_source_that_says_nothing_useful_is_asked_again(value: bytes) -> None:
    rig = Agreeing(RECORD, RECORD)
    packet = rig.sent[-1]
    assert packet.opcode == Opcode.EXCHANGE_RECORDS
    reply = packet._replace(value=value, vbucket=Status.SUCCESS)
    rig.feed._on_reply(reply)
    rig.carry_out()
    assert rig.feed.failure(0)
    assert [wait.partition_id for wait in rig.waits] == [0]


def test_a_take_over_without_agreement_ends_with_the_reason() -> None:
    rig = Agreeing(RECORD, NEWER)
    rig.host.refusal = Status.ETMPFAIL
    rig.feed.take_over(0)
    for _ in range(200):
        rig.exchange()
    assert [one.partition_id for one in rig.taken_over] == [0]
    assert "exchanges no records" in rig.taken_over[0].failure


@pytest.mark.parametrize("is_first", [True, False])
def test_a_partition_moves_to_the_first_of_the_newest_row_only(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ("here", "there") if is_first else ("there", "here")
    moving = replace(RECORD, at=MapKey(2, 6), rows=(RECORD.row, row), since=MapKey(2, 6))
    rig = Agreeing(RECORD, moving)
    right = Right(True, False)
    monkeypatch.setattr(rig.source.bucket, "may_serve_now", lambda _: True)
    monkeypatch.setattr(rig.source.bucket, "right_now", lambda _: right, raising=False)
    rig.write_and_settle()
    rig.feed.take_over(0)
    rig.carry_out()
    for _ in range(400):
        rig.exchange()
        rig.stop_source()
        if rig.changes:
            rig.change_state()
    state = rig.copy.bucket.partitions[0].state
    assert (state is PartitionState.ACTIVE) == is_first
    assert (rig.source.bucket.partitions[0].state is PartitionState.DEAD) == is_first


def test_what_is_exchanged_names_all_copies_at_once() -> None:
    rig = Rig(random.Random(3), count=3)
    for node, name in ((rig.source, "there"), (rig.copy, "here")):
        node.bucket.set_records([RECORD] * 3, name)
    rig.connect()
    packets = cut_packets(rig.to_source, 1 << 20)[0]
    (asked,) = [one for one in packets if one.opcode == Opcode.EXCHANGE_RECORDS]
    assert exchange_from_json(asked.value).records == dict.fromkeys(range(3), RECORD)
