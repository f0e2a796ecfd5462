"""Reports travel between nodes as they are, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest

from millstream.cluster.core.orders import Order, Reply
from millstream.cluster.core.reports import NodeReport, PartReport, from_peer, no_copy
from millstream.errors import RemoteProtocolError
from millstream.model.cluster_maps import Floor, MapKey
from millstream.vsr.core.versions import Version
from support.cluster.scene import ACTIVE, HERE, Scene, copy_report

REPORT = NodeReport(
    "n1",
    3,
    True,
    {
        "u1": {
            0: copy_report(ACTIVE, may_serve=True, heard=4, quiet_ms=7),
            1: no_copy(1, MapKey(1, 2)),
        }
    },
    {"u1": {0: PartReport("active", Floor(4, 9), MapKey(1, 3))}},
    {"n2": True},
    False,
)


def test_a_report_comes_back() -> None:
    assert from_peer(msgspec.json.encode(REPORT), NodeReport) == REPORT


def test_orders_and_replies_come_back() -> None:
    record = Scene().record
    order = Order(
        "promise", "c1", "n1", Version(1, 1, 2), HERE, record, branch=9, kept=("majority",)
    )
    assert from_peer(msgspec.json.encode(order), Order) == order
    reply = Reply("promised", copy_report(), 9, Version(1, 1, 2), record, Floor(1, 2))
    assert from_peer(msgspec.json.encode(reply), Reply) == reply


def test_a_node_may_say_nothing_of_a_partition() -> None:
    assert REPORT.copy("u1", 2) is None
    assert REPORT.part("u2", 0) is None
    absent = REPORT.copy("u1", 1)
    assert absent is not None
    assert not absent.is_there
    assert absent.at == MapKey(1, 2)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"node": 1}', b'{"node": "a", "boots": "x"}'])
def test_what_is_no_report_is_refused(content: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="no NodeReport") as caught:
        from_peer(content, NodeReport)
    assert caught.value.code == "bad_peer_message"
