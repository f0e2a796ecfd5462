"""A host without sockets, and a session on it."""

from __future__ import annotations

from collections.abc import Callable

from millstream.kv.aio.server import COMMANDS
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.session.handshake import BEFORE_LOGIN
from millstream.kv.core.session.session import KvSession
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.wire.mcbp import Packet, cut_packets

from support.kv.log_double import NOW, new_bucket  # isort: skip


class UserDouble:
    def __init__(self, *rights: str) -> None:
        self.rights = rights

    def may(self, right: str, bucket: str) -> bool:
        return right in self.rights


class ScramDouble:
    """Two steps; the word 'wrong' fails."""

    def __init__(self) -> None:
        self.steps = 0

    pause_s = 0.0

    def step(self, data: bytes) -> tuple[bytes, UserDouble | None]:
        from millstream.errors import AccessError

        if data == b"wrong":
            raise AccessError("no")
        self.steps += 1
        return b"challenge", UserDouble("read") if self.steps == 2 else None


class UsersDouble:
    is_empty = True

    def scram_server(self, mechanism: str, source: str = "") -> ScramDouble:
        return ScramDouble()


class StreamDouble:
    def __init__(self) -> None:
        self.packets: list[Packet] = []

    def on_packet(self, packet: Packet) -> None:
        self.packets.append(packet)

    def close(self) -> None: ...


class HostDouble:
    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {"b": new_bucket()}
        self.users = UsersDouble()
        self.checks: list[tuple[str, str]] = []
        self.stream = StreamDouble()
        self.fed: list[str] = []
        self.changed: list[Bucket] = []
        self.put_off: list[Callable[[], None]] = []

    def config(self, bucket: Bucket | None) -> bytes:
        return b'{"rev":1}'

    def open_stream(self, session: KvSession, name: str, flags: int) -> StreamDouble:
        return self.stream

    def open_feed(self, session: KvSession, name: str) -> StreamDouble:
        self.fed.append(name)
        return self.stream

    def check_password(self, session: KvSession, name: str, password: str) -> None:
        self.checks.append((name, password))

    def wipe(self, session: KvSession, at_ns: int, done: Callable[[], None]) -> None:
        assert session.bucket is not None
        session.bucket.wipe(at_ns, done)

    def later(self, session: KvSession, seconds: float, done: Callable[[], None]) -> None:
        self.put_off.append(done)

    def statistics(self) -> list[tuple[str, str]]:
        return [("version", "1")]

    def tell_changed(self, bucket: Bucket) -> None:
        self.changed.append(bucket)


def new_session(
    host: HostDouble | None = None,
    *,
    hashes_keys: bool = False,
    is_selected: bool = True,
    kind: type[KvSession] = KvSession,
) -> KvSession:
    host = host or HostDouble()
    session = kind(
        host,  # type: ignore[arg-type]
        COMMANDS,
        open_commands=BEFORE_LOGIN,
        hashes_keys=hashes_keys,
        peer="test",
    )
    if is_selected:
        session.select(host.buckets["b"])
    return session


def ask(session: KvSession, data: bytes, now_ns: int = NOW) -> list[Packet]:
    """Feed bytes, take whole replies."""
    packets, rest = cut_packets(session.receive(data, now_ns), FRAME_BYTES_MAX)
    assert not rest
    return packets
