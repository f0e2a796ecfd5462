"""SESSION: opening, moving to another connection, keeping alive, closing.

Invariants:
1. A session moves when its client asks for it here, not when that is answered. Only a client that
   knows the secret can move it.
2. Only administrators can list sessions.
3. A number is not given out twice on one session: numbering continues after the highest that the
   group has executed or that was used here.

Elsewhere: what the group stores of a session (`client_table`), its time (the primary).
"""

from __future__ import annotations

import re
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from millstream.coordination.core.backend import NO_LOGIN
from millstream.coordination.core.resp.session import Session
from millstream.vsr.core.client_table import TIME_OUT_MS, TIME_OUT_MS_MIN
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import ID_BYTES, Body, Kind
from millstream.vsr.core.values import bulk, error, integer, mapping, status

if TYPE_CHECKING:
    from millstream.coordination.core.resp.session import RespSession

__all__ = ["group_asked", "session_command"]

_CLIENT_ID: Final = re.compile(rb"([0-9a-f]{32})-(\d{1,20})\Z")
_INSTANCE: Final = re.compile(rb"[0-9a-fA-F]{32}\Z")
_USAGE: Final = (
    "SESSION OPEN [INSTANCE hex] [TTL ms], RESUME id secret, PING, INFO, CLOSE or LIST [id]; "
    "each [NAMESPACE root]"
)


def group_asked(resp: RespSession, argv: list[bytes], at: int) -> tuple[int, list[bytes]] | None:
    """Return which group a command without a path is about, and its words without that.

    It is said by NAMESPACE and a root, from word number `at` on; else it is the group used last.
    None if that makes no sense.
    """
    if resp.prefixes.gid is not None:
        return resp.prefixes.gid, argv
    upper = [word.upper() for word in argv]
    if b"NAMESPACE" in upper[at:]:
        at = upper.index(b"NAMESPACE", at)
        root = argv[at + 1] if at + 1 < len(argv) else b""
        if not root.startswith(b"/"):
            return None
        resp.gid = resp.backend.group_of(root)
        return resp.gid, argv[:at] + argv[at + 2 :]
    return resp.gid if resp.gid is not None else resp.backend.group_of(b""), argv


def session_command(resp: RespSession, argv: list[bytes]) -> bytes | None:
    """Carry out SESSION."""
    name = argv[1].upper() if len(argv) > 1 else b""
    if name == b"LIST" and resp.principal is not None and not resp.principal.is_admin:
        return error("NOPERM", "SESSION LIST is for administrators")
    found = group_asked(resp, argv, 2)
    if found is None:
        return error("BADARG", _USAGE)
    gid, argv = found
    if name == b"OPEN":
        return _open(resp, gid, argv[2:])
    if name == b"RESUME" and len(argv) == 4:
        return _resume(resp, gid, argv[2], argv[3])
    if name == b"LIST" and len(argv) < 4:
        return _list(resp, gid, argv[2:])
    if name not in (b"PING", b"INFO", b"CLOSE") or len(argv) != 2:
        return error("BADARG", _USAGE)
    session = resp.sessions.get(gid)
    if session is None:
        return error("SESSIONEXPIRED", "this connection has no session; SESSION OPEN opens one")
    if session.is_moved:
        return error("SESSIONMOVED", "another connection has resumed it")
    if name == b"INFO":
        return _shown(session, is_whole=True)
    if name == b"PING":
        _ping(resp, gid, session)
        return None
    _close(resp, gid, session)
    return None


def _ping(resp: RespSession, gid: int, session: Session) -> None:
    slot = resp.slot(gid)

    def known(reply: Reply) -> None:
        if reply.code is not Code.OK:
            return slot.fill(resp.refusal(gid, reply))
        session.ttl_ms = int(reply.value.split()[0])  # INFO says it
        return slot.fill(status(b"PONG"))

    resp.backend.resume(gid, session.instance, session.number, session.secret, known)


def _list(resp: RespSession, gid: int, words: list[bytes]) -> bytes | None:
    after = _CLIENT_ID.match(words[0]) if words else None
    if words and after is None:
        return error("BADARG", "SESSION LIST [client_id of the last one shown]")
    slot = resp.slot(gid)

    def known(reply: Reply) -> None:
        is_there = reply.code is Code.OK
        slot.fill(reply.value if is_there else resp.refusal(gid, reply))

    resp.backend.list_sessions(gid, int(after[2]) if after else 0, known)
    return None


def _shown(session: Session, *, is_whole: bool) -> bytes:
    client_id = b"%b-%d" % (session.instance.hex().encode(), session.number)
    pairs = [(b"client_id", bulk(client_id))]
    if is_whole:
        pairs.append((b"secret", bulk(session.secret)))
    pairs += [(b"ttl", integer(session.ttl_ms)), (b"csn", integer(session.csn))]
    return mapping(pairs)


def _open(resp: RespSession, gid: int, words: list[bytes]) -> bytes | None:
    options = {name.upper(): value for name, value in zip(words[::2], words[1::2], strict=False)}
    ttl = options.pop(b"TTL", b"%d" % TIME_OUT_MS)
    instance = options.pop(b"INSTANCE", None)
    if options or len(words) % 2 or not ttl.isdigit() or len(ttl) > 20:
        return error("BADARG", _USAGE)
    if instance is not None and not _INSTANCE.match(instance):
        return error("BADARG", "an instance is 32 hexadecimal digits")
    ttl_ms = min(max(int(ttl), TIME_OUT_MS_MIN), TIME_OUT_MS)
    of_client = bytes.fromhex(instance.decode()) if instance else resp.chance_bytes(ID_BYTES)

    def opened(refused: bytes | None) -> None:
        resp.say(refused or _shown(resp.sessions[gid], is_whole=True))

    resp.open_session(gid, of_client, ttl_ms, opened)
    return None


def _resume(resp: RespSession, gid: int, client_id: bytes, secret: bytes) -> bytes | None:
    found = _CLIENT_ID.match(client_id)
    if found is None:
        return error("BADARG", "a client_id is an instance, a hyphen and a number")
    instance, number = bytes.fromhex(found[1].decode()), int(found[2])
    used_at = resp.attached.get((gid, number))
    used = used_at.sessions[gid] if used_at else None
    if used is not None and used.instance == instance and compare_digest(used.secret, secret):
        resp.attach(gid, Session(instance, number, secret, used.ttl_ms, used.csn))

    def resumed(reply: Reply) -> None:
        if resp.is_stranger:
            resp.say(NO_LOGIN)
        elif reply.code is Code.OK:
            ttl, csn = map(int, reply.value.split())
            here = resp.sessions.get(gid)
            used_csn = here.csn if here is not None and here.number == number else 0
            resp.attach(gid, Session(instance, number, secret, ttl, max(csn, used_csn)))
            resp.say(_shown(resp.sessions[gid], is_whole=False))
        else:
            resp.say(resp.refusal(gid, reply))

    resp.is_blocked = True
    resp.backend.resume(
        gid, instance, number, secret, lambda reply: resp.unblock(lambda: resumed(reply))
    )
    return None


def _close(resp: RespSession, gid: int, session: Session) -> None:
    def closed(reply: Reply) -> None:
        if reply.code in (Code.OK, Code.SESSIONEXPIRED):
            resp.detach(gid)
            resp.say(b"+OK")
        else:
            resp.say(resp.refusal(gid, reply))

    resp.is_blocked = True
    resp.backend.request(
        gid,
        Body(),
        lambda reply: resp.unblock(lambda: closed(reply)),
        Kind.SESSION_CLOSE,
        session.instance,
        session.number,
    )
