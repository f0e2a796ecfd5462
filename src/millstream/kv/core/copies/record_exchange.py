"""The exchange of records between a copy of a managed cluster and its source: content and effect.

    EXCHANGE_RECORDS
    value  JSON: {"records": {partition: record}, "branches": {partition: the largest branch that
           the copy has promised}}
    reply  JSON: {"records": {partition: record}}, the newest records of the source, after it has
           adopted those of the copy that are newer

Elsewhere: the request at the source (`kv.core.session.record_commands`), when a copy asks
(`agreeing_stream`), records (`model.cluster_maps`).

Source: docs/reference/wire/extensions.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from millstream.errors import RemoteProtocolError
from millstream.model.cluster_maps import DataRecord
from millstream.wire.mcbp import Opcode, request

__all__ = [
    "AdoptRecords",
    "Exchange",
    "exchange_from_json",
    "exchange_request",
    "exchange_to_json",
]


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Records by partition, and what copies have promised."""

    records: dict[int, DataRecord]
    branches: dict[int, int] = {}


class AdoptRecords(NamedTuple):
    """Adopt the records of the source, by partition; then call `on_adopted`."""

    records: Mapping[int, DataRecord]


def exchange_to_json(exchange: Exchange) -> bytes:
    """Reverse `exchange_from_json`."""
    return msgspec.json.encode(exchange)


def exchange_from_json(content: bytes) -> Exchange:
    """Return what another node sent.

    Raises:
        RemoteProtocolError: `bad_records`.
    """
    try:
        return msgspec.json.decode(content, type=Exchange)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(
            f"another node sent records that cannot be used: {error}; check that all nodes have "
            "the same version",
            code="bad_records",
        ) from error


def exchange_request(exchange: Exchange, opaque: int) -> bytes:
    """Return the request of a copy."""
    value = exchange_to_json(exchange)
    return request(Opcode.EXCHANGE_RECORDS, opaque=opaque, value=value)
