import json

import pytest

from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    ProtocolError,
    RoutingError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets, response
from millstream.wire.replies import detail_of, error_of, error_of_status


def reply(status: int, value: bytes = b"") -> Packet:
    return cut_packets(response(Opcode.GET, status, 1, value=value), 100_000)[0][0]


@pytest.mark.parametrize(
    ("status", "kind", "code", "retry"),
    [
        (Status.KEY_ENOENT, ConditionError, "not_found", "never"),
        (Status.KEY_EEXISTS, ConditionError, "key_exists", "never"),
        (Status.NOT_MY_VBUCKET, RoutingError, "not_my_partition", "refresh_map"),
        (Status.EACCESS, AccessError, "access_denied", "never"),
        (Status.ETMPFAIL, UnavailableError, "busy", "backoff"),
        (Status.LEASE_LOST, StreamError, "lease_lost", "never"),
        (Status.E2BIG, UsageError, "too_large", "never"),
    ],
)
def test_meanings(status: int, kind: type[MillstreamError], code: str, retry: str) -> None:
    error = error_of(reply(status), address="n:1", what="get 'k'")
    assert type(error) is kind
    assert (error.code, error.retry) == (code, retry)
    assert "get 'k'" in str(error)
    assert "n:1" in str(error)


def test_every_status_but_success_has_an_error() -> None:
    for status in set(Status) - {Status.SUCCESS}:
        assert isinstance(error_of_status(status, address="n:1", what="x"), MillstreamError)


def test_unknown_status_is_told_in_digits() -> None:
    error = error_of_status(0xC7, address="n:1", what="get")
    assert isinstance(error, ProtocolError)
    assert "0xc7" in str(error)


def test_explanation_of_the_node_is_shown() -> None:
    value = json.dumps({"error": {"context": "disk on fire"}}).encode()
    assert "disk on fire" in str(error_of(reply(Status.EINVAL, value), address="n:1", what="x"))


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b'{"error":1}', b'{"a":{}}', b"{"])
def test_other_values_explain_nothing(value: bytes) -> None:
    assert detail_of(reply(Status.EINVAL, value)) == ""
