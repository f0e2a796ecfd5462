from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from msgspec import json

from millstream.kv.core.session.handshake import FEATURES_MAX, MEMCACHED_VERSION, VERSION
from millstream.wire.mcbp import Feature, Opcode, Status, request
from support.kv.session_double import HostDouble, ScramDouble, UserDouble, ask, new_session


def hello(*codes: int) -> bytes:
    return request(Opcode.HELLO, key=b"test", value=struct.pack(f">{len(codes)}H", *codes))


def locked_host() -> HostDouble:
    host = HostDouble()
    host.users.is_empty = False
    return host


def test_hello_grants_what_was_asked_and_is_real() -> None:
    session = new_session()
    reply = ask(session, hello(Feature.SNAPPY, Feature.JSON, Feature.XERROR, Feature.COLLECTIONS))
    assert struct.unpack(">2H", reply[0].value) == (Feature.JSON, Feature.XERROR)
    assert (session.client_name, session.datatype_mask) == ("test", 1)
    assert ask(session, request(Opcode.HELLO, value=b"x"))[0].status == Status.EINVAL
    assert ask(session, hello(*range(FEATURES_MAX)))[0].status == 0
    assert ask(session, hello(*range(FEATURES_MAX + 1)))[0].status == Status.EINVAL


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ((Feature.MAP_NOTICE, Feature.DUPLEX), (Feature.MAP_NOTICE, Feature.DUPLEX)),
        ((Feature.MAP_NOTICE, Feature.JSON), (Feature.JSON,)),
    ],
)
def test_notices_of_maps_go_to_clients_that_take_packets_unasked(
    asked: tuple[int, ...], granted: tuple[int, ...]
) -> None:
    (reply,) = ask(new_session(), hello(*asked))
    assert struct.unpack(f">{len(reply.value) // 2}H", reply.value) == granted


def test_mechanisms_are_listed_strongest_first() -> None:
    reply = ask(new_session(), request(Opcode.SASL_LIST_MECHS))[0]
    assert reply.value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"


def test_scram_takes_its_steps_then_the_bucket_opens() -> None:
    session = new_session(locked_host(), is_selected=False)
    assert ask(session, request(Opcode.SELECT_BUCKET, key=b"b"))[0].status == Status.EACCESS
    first = ask(session, request(Opcode.SASL_AUTH, key=b"SCRAM-SHA512", value=b"a"))[0]
    assert (first.status, first.value) == (Status.AUTH_CONTINUE, b"challenge")
    second = ask(session, request(Opcode.SASL_STEP, key=b"SCRAM-SHA512", value=b"b"))[0]
    assert (second.status, second.value) == (0, b"challenge")
    assert ask(session, request(Opcode.SELECT_BUCKET, key=b"b"))[0].status == 0
    assert ask(session, request(Opcode.SELECT_BUCKET, key=b"no"))[0].status == Status.EACCESS
    read = ask(session, request(Opcode.GET, key=b"k"))[0]
    written = ask(session, request(Opcode.SET, key=b"k", extras=bytes(8)))[0]
    assert (read.status, written.status) == (Status.KEY_ENOENT, Status.EACCESS)


@pytest.mark.parametrize(
    "data",
    [
        request(Opcode.SASL_AUTH, key=b"CRAM-MD5"),
        request(Opcode.SASL_AUTH, key=b"SCRAM-SHA1", value=b"wrong"),
        request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"no zeros"),
        request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0\xff\0x"),
        request(Opcode.SASL_STEP, key=b"SCRAM-SHA1", value=b"b"),
    ],
)
def test_bad_logins_are_refused(data: bytes) -> None:
    session = new_session(locked_host())
    assert ask(session, data)[0].status == Status.AUTH_ERROR
    assert not session.is_logged_in


@pytest.mark.parametrize("user", [UserDouble("read"), None])
def test_a_plain_password_is_checked_elsewhere_and_requests_wait(user: UserDouble | None) -> None:
    host = locked_host()
    session = new_session(host)
    data = request(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0name\0word", opaque=1)
    assert ask(session, data + request(Opcode.NOOP, opaque=2)) == []
    assert host.checks == [("name", "word")]
    session.on_password_checked(user)  # type: ignore[arg-type]
    replies = ask(session, b"")
    status = 0 if user else Status.AUTH_ERROR
    assert [(reply.opaque, reply.status) for reply in replies] == [(1, status), (2, 0)]


@pytest.mark.parametrize("key", [b"SCRAM-SHA512", b"SCRAM-SHA1", b"PLAIN", b"CRAM-MD5"])
@pytest.mark.parametrize("value", [b"n,,n=any,r=nonce", b"wrong"])
def test_without_users_any_login_is_welcome_and_may_go_on(key: bytes, value: bytes) -> None:
    session = new_session()
    first = ask(session, request(Opcode.SASL_AUTH, key=key, value=value))[0]
    is_scram = key.startswith(b"SCRAM") and value != b"wrong"
    assert (first.status, first.value) == (0, b"challenge" if is_scram else b"")
    assert ask(session, request(Opcode.SASL_STEP, key=key, value=b"proof"))[0].status == 0
    assert ask(session, request(Opcode.GET, key=b"k"))[0].status == Status.KEY_ENOENT


def test_before_a_bucket_is_selected_the_map_is_that_of_the_nodes() -> None:
    session = new_session(is_selected=False)
    assert ask(session, request(Opcode.GET_CLUSTER_CONFIG))[0].status == Status.SUCCESS
    ask(session, request(Opcode.SELECT_BUCKET, key=b"b"))
    reply = ask(session, request(Opcode.GET_CLUSTER_CONFIG))[0]
    assert (reply.value, reply.datatype) == (b'{"rev":1}', 1)


def test_the_error_map_is_json() -> None:
    session = new_session()
    reply = ask(session, request(Opcode.GET_ERROR_MAP, value=b"\0\2"))[0]
    assert json.decode(reply.value)["errors"]["1"]["name"] == "KEY_ENOENT"
    assert ask(session, request(Opcode.GET_ERROR_MAP, value=b""))[0].status == Status.EINVAL


@pytest.mark.parametrize("opcode", [0xC5, 0xCF, 0xD0, 0xD1, 0xD3])
def test_subdocument_commands_are_not_supported_rather_than_unknown(opcode: int) -> None:
    assert ask(new_session(), request(opcode, key=b"k"))[0].status == Status.NOT_SUPPORTED
    assert ask(new_session(), request(0xD4, key=b"k"))[0].status == Status.UNKNOWN_COMMAND


def test_quit_answers_and_closes() -> None:
    session = new_session()
    assert len(ask(session, request(Opcode.QUIT) + request(Opcode.NOOP))) == 1
    assert session.is_closing
    quiet = new_session()
    assert ask(quiet, request(Opcode.QUITQ)) == []


def test_a_stream_is_opened_once_and_takes_its_requests() -> None:
    host = HostDouble()
    session = new_session(host)
    stream = request(Opcode.DCP_STREAM_REQ, opaque=9)
    assert ask(session, stream)[0].status == Status.EINVAL
    opened = request(Opcode.DCP_OPEN, key=b"name", extras=struct.pack(">II", 0, 1))
    assert ask(session, opened)[0].status == 0
    assert ask(session, opened)[0].status == Status.EINVAL
    assert ask(session, stream + b"\x81\x5c" + bytes(22)) == []
    assert [packet.opcode for packet in host.stream.packets] == [0x53, 0x5C]


@pytest.mark.parametrize(
    ("key", "flags", "status"),
    [
        (b"", 1, Status.EINVAL),
        (b"n" * 201, 1, Status.EINVAL),
        (b"n", 3, Status.EINVAL),
        (b"n", 0x49, Status.EINVAL),
        (b"n", 0x101, Status.EINVAL),
        (b"n", 0x8001, Status.EINVAL),
        (b"n", 0x200, Status.EINVAL),
    ],
)
def test_bad_opens_are_refused(key: bytes, flags: int, status: int) -> None:
    opened = request(Opcode.DCP_OPEN, key=key, extras=struct.pack(">II", 0, flags))
    assert ask(new_session(), opened)[0].status == status


@pytest.mark.parametrize("flags", [0x01, 0x05, 0x09, 0x21, 0x41, 0x105, 0x201])
def test_every_flag_of_the_protocol_opens_a_stream(flags: int) -> None:
    extras = struct.pack(">II", 0, flags)
    for value, status in ((b"", 0), (b'{"consumer_name":"c"}', 0), (b"[]", 4), (b"{", 4)):
        opened = request(Opcode.DCP_OPEN, key=b"n" * 200, extras=extras, value=value)
        assert ask(new_session(), opened)[0].status == status


def test_whoever_runs_the_cluster_opens_a_connection_that_feeds_copies() -> None:
    host = HostDouble()
    session = new_session(host)
    opened = request(Opcode.DCP_OPEN, key=b"name", extras=bytes(8))
    assert ask(session, opened)[0].status == 0
    assert host.fed == ["name"]
    add = request(Opcode.DCP_ADD_STREAM, extras=bytes(4))
    assert ask(session, add + put_frame()) == []
    assert [packet.opcode for packet in host.stream.packets] == [0x51, 0x57]
    host = locked_host()
    session = new_session(host)
    session.user = UserDouble("read", "write", "stream")  # type: ignore[assignment]
    assert ask(session, opened)[0].status == Status.EACCESS
    assert host.fed == []


def put_frame() -> bytes:
    return request(Opcode.DCP_MUTATION, extras=bytes(31), key=b"k", value=b"v")


def test_barriers_are_unknown_to_who_did_not_ask_for_our_feature() -> None:
    barrier = request(Opcode.BARRIER, key=b"c", extras=bytes(4))
    assert ask(new_session(), barrier)[0].status == Status.UNKNOWN_COMMAND
    hello = request(Opcode.HELLO, value=Feature.MILLSTREAM.to_bytes(2, "big"))
    assert ask(new_session(), hello + barrier)[1].status == Status.EINVAL, "no stream is open"


def test_a_stream_needs_its_right() -> None:
    host = locked_host()
    session = new_session(host)
    session.user = UserDouble("read", "write")  # type: ignore[assignment]
    opened = request(Opcode.DCP_OPEN, key=b"n", extras=struct.pack(">II", 0, 1))
    assert ask(session, opened)[0].status == Status.EACCESS


def test_the_version_is_one_that_the_port_s_clients_can_read() -> None:
    for hashes_keys, wanted in ((False, VERSION), (True, MEMCACHED_VERSION)):
        session = new_session(hashes_keys=hashes_keys)
        version = ask(session, request(Opcode.VERSION))[0].value.decode()
        assert version == wanted
    assert version.split(".")[0] == "1", "libmemcached takes 0 for an error"


def test_a_refusal_of_who_guesses_waits_and_so_do_the_requests_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = locked_host()
    session = new_session(host)
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(ScramDouble, "pause_s", 0.5)
    monkeypatch.setattr(host, "later", lambda *args: waiting.append(args[-1]), raising=False)
    data = request(Opcode.SASL_AUTH, key=b"SCRAM-SHA1", value=b"wrong", opaque=1)
    assert ask(session, data + request(Opcode.NOOP, opaque=2)) == []
    waiting.pop()()
    replies = ask(session, b"")
    assert [(one.opaque, one.status) for one in replies] == [(1, Status.AUTH_ERROR), (2, 0)]
