"""EXCHANGE_RECORDS: a copy of a managed cluster and its source tell each other their records.

Invariants:
1. The reply has records that are adopted here durably.
2. Only nodes exchange records: the right `admin` is needed.

Elsewhere: content (`kv.core.copies.record_exchange`), adoption (`databases.adopted_records`).

Source: docs/reference/wire/extensions.md.
"""

from __future__ import annotations

from typing import Final

from millstream.errors import RemoteProtocolError
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.record_exchange import (
    Exchange,
    exchange_from_json,
    exchange_to_json,
)
from millstream.kv.core.session.session import Command, KvSession
from millstream.model.cluster_maps import DataRecord
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, response

__all__ = ["RECORD_COMMANDS"]


def _exchange(session: KvSession, packet: Packet, _: int) -> bytes | None:
    bucket = session.bucket
    if Feature.MILLSTREAM not in session.features:
        return session.refusal(packet, Status.UNKNOWN_COMMAND)
    if bucket is None:
        return session.refusal(packet, Status.NO_BUCKET)
    if not session.may("admin"):
        return session.refusal(packet, Status.EACCESS)
    if not bucket.is_managed:
        return session.refusal(packet, Status.NOT_SUPPORTED)
    try:
        told = exchange_from_json(packet.value)
    except RemoteProtocolError:
        return session.refusal(packet, Status.EINVAL)
    numbers = told.records.keys() | told.branches.keys()
    is_known = all(0 <= number < bucket.partition_count for number in numbers)
    if packet.key or packet.extras or not is_known:
        return session.refusal(packet, Status.EINVAL)
    for number, branch in told.branches.items():
        bucket.hear(number, branch)
    news = _news(bucket, told)
    if not news:
        return _reply(packet, bucket, told)

    def answered(status: Status) -> bytes:
        if status != Status.SUCCESS:
            return session.refusal(packet, status)
        return _reply(packet, bucket, told)

    session.wait_for_reply(
        lambda done: session.host.adopt(session, news, lambda status: done(answered(status)))
    )
    return None


def _news(bucket: Bucket, told: Exchange) -> dict[int, DataRecord]:
    """Return the records that are newer; one of the same key and another content is damage."""
    found: dict[int, DataRecord] = {}
    for number, record in told.records.items():
        own = bucket.record(number)
        if own is not None and record.at >= own.at and record != own:
            found[number] = record
    return found


def _reply(packet: Packet, bucket: Bucket, told: Exchange) -> bytes:
    records = {number: bucket.record(number) for number in told.records}
    known = {number: record for number, record in records.items() if record is not None}
    value = exchange_to_json(Exchange(known))
    return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value)


RECORD_COMMANDS: Final[dict[int, Command]] = {Opcode.EXCHANGE_RECORDS: _exchange}
