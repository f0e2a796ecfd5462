import socket
import ssl
from typing import Any

import pytest

from millstream.client.connection import Connection
from millstream.errors import AccessError, RemoteProtocolError, UnavailableError
from millstream.wire.mcbp import Opcode, Status, request, response
from support.node.node_process import free_port


def test_features_and_bucket_are_asked_for(node: Any) -> None:
    with Connection(node.host, node.port, bucket="flights") as connection:
        assert connection.is_extended
        assert node.requests_of(Opcode.SELECT_BUCKET)[0].key == b"flights"
        assert not node.requests_of(Opcode.SASL_AUTH)


def test_unknown_bucket_is_named(node: Any) -> None:
    with pytest.raises(AccessError, match=r"no bucket 'trains'") as failed:
        Connection(node.host, node.port, bucket="trains")
    assert failed.value.code == "unknown_bucket"
    assert node.address in str(failed.value)


def test_unreachable_node_is_named() -> None:
    port = free_port()
    with pytest.raises(
        UnavailableError, match=rf"cannot connect to 127\.0\.0\.1:{port}"
    ) as failed:
        Connection("127.0.0.1", port)
    assert failed.value.code == "unreachable"


def test_silent_node_times_out() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(UnavailableError, match=r"did not answer within 0\.05 s") as failed,
    ):
        Connection(*server.getsockname(), timeout_s=0.05)
    assert failed.value.code == "timeout"


def test_node_that_hangs_up(node: Any) -> None:
    node.handlers[Opcode.NOOP] = lambda packet: None
    connection = Connection(node.host, node.port)
    with pytest.raises(UnavailableError) as failed:
        connection.request(Opcode.NOOP)
    assert failed.value.code == "connection_closed"
    assert connection.is_closed


def test_hanging_up_at_once_tells_of_tls(node: Any) -> None:
    node.handlers[Opcode.HELLO] = lambda packet: None
    with pytest.raises(UnavailableError, match="wants TLS") as failed:
        Connection(node.host, node.port)
    assert failed.value.code == "connection_closed"


def test_garbage_closes_the_connection(node: Any) -> None:
    node.handlers[Opcode.NOOP] = lambda packet: b"\x99" * 24
    connection = Connection(node.host, node.port)
    with pytest.raises(RemoteProtocolError):
        connection.request(Opcode.NOOP)
    assert connection.is_closed


def test_plain_port_is_no_tls_port(node: Any) -> None:
    context = ssl.create_default_context()
    node.handlers.clear()
    with pytest.raises(UnavailableError, match="no TLS connection"):
        Connection(node.host, node.port, tls=context, timeout_s=0.5)


def test_replies_that_belong_to_nobody_are_passed_over(node: Any) -> None:
    stray = response(Opcode.GET, Status.KEY_ENOENT, 0xFFFFFFFF) + request(Opcode.DCP_NOOP)
    node.handlers[Opcode.NOOP] = lambda packet: stray + response(Opcode.NOOP, 0, packet.opaque)
    with Connection(node.host, node.port) as connection:
        assert connection.request(Opcode.NOOP).opcode == Opcode.NOOP
        assert connection.request(Opcode.NOOP).status == Status.SUCCESS


def test_large_values_both_ways(node: Any, client: Any) -> None:
    value = bytes(range(256)) * 40_000
    client.upsert("large", value)
    assert client.get("large").data == value


def test_plain_password_is_not_shown_without_tls(node: Any) -> None:
    node.handlers[Opcode.SASL_LIST_MECHS] = lambda packet: response(
        packet.opcode, 0, packet.opaque, value=b"PLAIN"
    )
    with pytest.raises(AccessError, match="use TLS"):
        Connection(node.host, node.port, user="ann", password="secret")
    assert not any(b"secret" in packet.value for packet in node.requests)
