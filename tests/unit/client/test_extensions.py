from struct import pack

import pytest

from millstream.client.extensions import (
    LeaseHold,
    LeaseOp,
    PartitionPosition,
    Versioned,
    branch_log_from,
    lease_extras,
    lease_holds_from,
    lease_value,
    partition_list,
    positions_from,
    versioned_from,
)
from millstream.errors import RemoteProtocolError
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.wire.mcbp import Opcode, Packet, cut_packets, response


def reply(value: bytes = b"", extras: bytes = b"", cas: int = 0) -> Packet:
    frame = response(Opcode.LEASE, 0, 1, cas=cas, extras=extras, value=value)
    return cut_packets(frame, 100_000)[0][0]


def test_positions() -> None:
    assert partition_list([1, 258]) == bytes.fromhex("00010102")
    value = pack(">HB5x8Q", 3, 1, 0xAB, 9, 100, 90, 100, 80, 70, 60)
    assert positions_from(reply(value)) == [
        PartitionPosition(3, PartitionState.ACTIVE, 0xAB, 9, 100, 90, 100, 80, 70, 60)
    ]


def test_branch_log() -> None:
    value = pack(">QQQQQQ", 2, 50, 9, 1, 0, 8)
    assert branch_log_from(reply(value)) == (FailoverEntry(2, 50, 9), FailoverEntry(1, 0, 8))


def test_leases() -> None:
    assert lease_extras(LeaseOp.RENEW, 5, 60) == pack(">BQH", 2, 5, 60)
    assert lease_value({1: None, 2: 7}) == pack(">HQHQ", 1, 2**64 - 1, 2, 7)
    extras, value = pack(">QH", 5, 600), pack(">HQQQQ", 1, 40, 0xAB, 9, 3)
    assert lease_holds_from(reply(value, extras)) == [LeaseHold(5, 1, 40, 0xAB, 9, 3)]


def test_versioned() -> None:
    extras = pack(">IQQQQIB", 1, 0xAB, 9, 40, 2, 33, 1)
    assert versioned_from(reply(b"v", extras, 77)) == Versioned(
        b"v", 77, 1, 0xAB, 9, 40, 2, 33, True
    )


@pytest.mark.parametrize(
    "cut", [positions_from, branch_log_from, lease_holds_from, versioned_from]
)
def test_other_lengths_are_the_peers_fault(cut: object) -> None:
    with pytest.raises(RemoteProtocolError) as failed:
        cut(reply(b"1234567", b"1234567"))  # type: ignore[operator]
    assert failed.value.code == "bad_frame"


def test_unknown_state_and_empty_log() -> None:
    with pytest.raises(RemoteProtocolError):
        positions_from(reply(pack(">HB5x8Q", 3, 9, *range(8))))
    with pytest.raises(RemoteProtocolError):
        branch_log_from(reply())
