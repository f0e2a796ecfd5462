import pytest

from millstream.access.kv_login import Login, Steps, hung_up, open_session
from millstream.access.users import UserStore
from millstream.errors import AccessError, MillstreamError, UnavailableError
from millstream.wire.mcbp import (
    Feature,
    Opcode,
    Packet,
    Status,
    cut_packets,
    response,
)


def packet_of(frame: bytes) -> Packet:
    return cut_packets(frame, 1_000_000)[0][0]


class Node:
    """Answers the steps; keeps what it was asked."""

    def __init__(self, mechanisms: str = "SCRAM-SHA512 SCRAM-SHA1 PLAIN") -> None:
        self.users = UserStore()
        self.mechanisms = mechanisms
        self.asked: list[Packet] = []
        self.buckets = [b"flights"]

    def run(self, steps: Steps) -> frozenset[int]:
        frame = next(steps)
        while True:
            self.asked.append(packet_of(frame))
            try:
                frame = steps.send(packet_of(self.reply(self.asked[-1])))
            except StopIteration as done:
                features: frozenset[int] = done.value
                return features

    def reply(self, packet: Packet) -> bytes:
        value, status = b"", Status.SUCCESS
        match packet.opcode:
            case Opcode.HELLO:
                value = Feature.MILLSTREAM.to_bytes(2, "big")
            case Opcode.SASL_LIST_MECHS:
                value = self.mechanisms.encode()
            case Opcode.SASL_AUTH | Opcode.SASL_STEP:
                status, value = self.log_in(packet)
            case Opcode.SELECT_BUCKET if packet.key not in self.buckets:
                status = Status.EACCESS
        return response(packet.opcode, status, 0, value=value)

    def log_in(self, packet: Packet) -> tuple[Status, bytes]:
        if packet.key == b"PLAIN":
            _, name, password = packet.value.decode().split("\0")
            found = self.users.check_password(name, password)
            return (Status.SUCCESS if found else Status.AUTH_ERROR), b""
        if packet.opcode == Opcode.SASL_AUTH:
            self.scram = self.users.scram_server(packet.key.decode())
        try:
            value, user = self.scram.step(packet.value)
        except AccessError:
            return Status.AUTH_ERROR, b""
        return (Status.AUTH_CONTINUE if user is None else Status.SUCCESS), value


@pytest.fixture(scope="module")
def users() -> UserStore:
    store = UserStore()
    store.put("ann", "pässword", ["admin"])
    return store


@pytest.mark.parametrize(
    ("offered", "taken"),
    [("PLAIN SCRAM-SHA1 SCRAM-SHA512", b"SCRAM-SHA512"), ("SCRAM-SHA1 PLAIN", b"SCRAM-SHA1")],
)
def test_strongest_mechanism_is_taken(users: UserStore, offered: str, taken: bytes) -> None:
    node = Node(offered)
    node.users = users
    features = node.run(open_session(Login("n:1", "ann", "pässword", "flights")))
    assert features == {Feature.MILLSTREAM}
    assert [packet.key for packet in node.asked if packet.opcode == Opcode.SASL_AUTH] == [taken]


def test_wrong_password(users: UserStore) -> None:
    node = Node()
    node.users = users
    with pytest.raises(AccessError, match="n:1 does not accept user 'ann'") as failed:
        node.run(open_session(Login("n:1", "ann", "wrong")))
    assert failed.value.code == "bad_credentials"


def test_plain_only_on_encrypted_connections(users: UserStore) -> None:
    node = Node("PLAIN")
    node.users = users
    with pytest.raises(AccessError, match="use TLS"):
        node.run(open_session(Login("n:1", "ann", "pässword")))
    node.run(open_session(Login("n:1", "ann", "pässword", is_encrypted=True)))


def test_unknown_bucket_tells_of_a_missing_user() -> None:
    with pytest.raises(AccessError, match=r"no bucket 'trains'.*wants a user") as failed:
        Node().run(open_session(Login("n:1", bucket="trains")))
    assert failed.value.code == "unknown_bucket"


def test_password_is_in_no_representation() -> None:
    assert "secret" not in repr(Login("n:1", "ann", "secret"))


def test_other_refusals_keep_their_meaning() -> None:
    node = Node()
    node.reply = lambda packet: response(packet.opcode, Status.EBUSY, 0)  # type: ignore[method-assign]
    with pytest.raises(MillstreamError) as failed:
        node.run(open_session(Login("n:1")))
    assert failed.value.code == "busy"


@pytest.mark.parametrize(
    ("answered", "spoken"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"-ERR this port speaks RESP", "RESP"),
        (b"\x1c\0\0\0\x6b\xff\xff\x13\0this port speaks 9P", "9P"),
        (b"e=this port is for other nodes\n", "between nodes"),
        (b"\x15\x03\x01\0\x02\x02\x46", "TLS"),
    ],
)
def test_a_port_of_another_protocol_is_named(answered: bytes, spoken: str) -> None:
    lost = UnavailableError("lost", code="connection_closed")
    error = hung_up(lost, "db:1", answered)
    assert error.code == "wrong_port"
    assert "db:1 is no kv port" in str(error)
    assert spoken in str(error)


def test_a_port_that_says_nothing_is_not_guessed_at() -> None:
    lost = UnavailableError("lost", code="connection_closed")
    assert "hung up at once" in str(hung_up(lost, "db:1", b""))
    late = UnavailableError("late", code="timeout")
    assert hung_up(late, "db:1", b"\x81\0") is late
