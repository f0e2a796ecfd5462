"""Commands that every RESP client knows: greeting, login, connection and node.

Invariants:
1. Standard clients and tools work: every command that they send when they connect gets a reply,
   even if it has no effect.
2. Only the guard checks a password or a token. Meanwhile nothing else is done on the connection.

Elsewhere: sessions (`session_commands`), subscriptions (`subscribe_commands`), the commands of the
state machine (`registers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from millstream.coordination.core.backend import Principal
from millstream.coordination.core.namespace.admission import admit, begin_transaction, forced
from millstream.coordination.core.namespace.commands.settings import PATTERN_BYTES_MAX
from millstream.coordination.core.namespace.state.keys import in_key_pattern
from millstream.coordination.core.resp.session_commands import session_command
from millstream.coordination.core.resp.subscribe_commands import (
    acknowledge_command,
    notify_command,
    subscribe_command,
    unsubscribe_command,
)
from millstream.coordination.core.resp.user_commands import user_command
from millstream.version import __version__
from millstream.vsr.core.values import (
    NULL,
    OK,
    array,
    bulk,
    error,
    integer,
    mapping,
    status,
)

if TYPE_CHECKING:
    from millstream.coordination.core.resp.session import Handler, RespSession

__all__ = ["CONNECTION_COMMANDS", "NAME_BYTES_MAX", "TOKEN_NAME"]

NAME_BYTES_MAX: Final = 256
"""Most bytes of a connection's name."""
TOKEN_NAME: Final = b"TOKEN"
"""User name, in any case, that announces a token instead of a password."""


# ---- greeting and log-in


def _hello(resp: RespSession, argv: list[bytes]) -> bytes | None:
    version = argv[1] if len(argv) > 1 else b"%d" % resp.protocol
    if version not in (b"2", b"3"):
        return error("NOPROTO", "only protocols 2 and 3 are supported")
    words, login, name = argv[2:], None, None
    while words:
        option = words[0].upper()
        if option == b"AUTH" and len(words) >= 3:
            login, words = (words[1], words[2]), words[3:]
        elif option == b"SETNAME" and len(words) >= 2:
            name, words = words[1], words[2:]
        else:
            return error("BADARG", "HELLO [2 or 3 [AUTH name password] [SETNAME name]]")
    if name is not None and not _is_name(name):
        return _bad_name()

    def greet() -> None:
        resp.protocol = int(version)
        if name is not None:
            resp.name = name
        resp.say(_greeting(resp))

    if login is None:
        greet()
    else:
        _check(resp, *login, greet)
    return None


def _greeting(resp: RespSession) -> bytes:
    return mapping(
        (
            (b"server", bulk(b"millstream")),
            (b"version", bulk(__version__.encode())),
            (b"proto", integer(resp.protocol)),
            (b"id", integer(resp.number)),
            (b"mode", bulk(b"coordination")),
            (b"modules", array(())),
        )
    )


def _auth(resp: RespSession, argv: list[bytes]) -> bytes | None:
    if len(argv) != 3:
        return error("BADARG", "AUTH name password, or AUTH TOKEN token")
    _check(resp, argv[1], argv[2], lambda: resp.say(OK))
    return None


def _check(resp: RespSession, name: bytes, secret: bytes, then: Callable[[], None]) -> None:
    """Check a password, or a token for the user name `TOKEN`."""

    def checked(found: Principal | str) -> None:
        if isinstance(found, str):
            resp.say(error("NOAUTH", found))
        else:
            resp.log_in(found)
            then()

    def known(found: Principal | str) -> None:
        resp.unblock(lambda: checked(found))

    resp.is_blocked = True
    if name.upper() == TOKEN_NAME:
        resp.give_up = resp.guard.check_token(secret, known)
    else:
        text = (name.decode("utf-8", "replace"), secret.decode("utf-8", "replace"))
        resp.give_up = resp.guard.check(*text, known, resp.source)
    if resp.give_up is None:
        resp.is_blocked = False
        resp.say(error("BUSY", "too many logins at once; try again, or another node"))


# ---- the connection


def _ping(resp: RespSession, argv: list[bytes]) -> bytes:
    if len(argv) > 2:
        return error("BADARG", "PING [message]")
    if resp.protocol == 2 and resp.listener.is_on:
        return array((bulk(b"pong"), bulk(b"".join(argv[1:]))))
    return bulk(argv[1]) if len(argv) == 2 else status(b"PONG")


def _echo(_resp: RespSession, argv: list[bytes]) -> bytes:
    return bulk(argv[1]) if len(argv) == 2 else error("BADARG", "ECHO message")


def _quit(resp: RespSession, _argv: list[bytes]) -> bytes:
    resp.listener.end()
    resp.is_closing = True
    return OK


def _reset(resp: RespSession, _argv: list[bytes]) -> bytes:
    resp.detach()
    resp.listener.end()
    resp.transaction = None
    resp.log_in(None)
    resp.protocol, resp.name, resp.gid = 2, b"", None
    return status(b"RESET")


# ---- transactions


def _multi(resp: RespSession, argv: list[bytes]) -> bytes:
    if len(argv) > 1:
        return error("BADARG", "MULTI")
    if resp.transaction is not None:
        return error("ERR", "MULTI within MULTI; EXEC or DISCARD ends it")
    resp.transaction = begin_transaction()
    return OK


def _discard(resp: RespSession, _argv: list[bytes]) -> bytes:
    if resp.transaction is None:
        return error("ERR", "DISCARD without MULTI")
    resp.transaction = None
    return OK


def _exec(resp: RespSession, argv: list[bytes]) -> bytes | None:
    if resp.transaction is None:
        return error("ERR", "EXEC without MULTI")
    if len(argv) > 1:
        return error("BADARG", "EXEC")
    words, resp.transaction = resp.transaction.words(), None
    if isinstance(words, bytes):
        return words
    if len(words) == 1:
        return array(())
    request = admit(words, resp.prefixes.stamp)
    resp.submit(forced(request) if resp.prefixes.passes_locks else request, resp.prefixes)
    return None


# ---- compatibility


def _select(_resp: RespSession, argv: list[bytes]) -> bytes:
    return OK if argv[1:] == [b"0"] else error("BADARG", "there is only SELECT 0")


def _client(resp: RespSession, argv: list[bytes]) -> bytes:
    match [word.upper() for word in argv[1:2]], argv[2:]:
        case [b"SETINFO"], [_, _]:
            return OK
        case [b"SETNAME"], [name]:
            if not _is_name(name):
                return _bad_name()
            resp.name = name
            return OK
        case [b"GETNAME"], []:
            return bulk(resp.name) if resp.name else NULL
        case [b"ID"], []:
            return integer(resp.number)
        case [b"INFO"], []:
            user = resp.principal.name if resp.principal else "anonymous"
            shown = f"id={resp.number} user={user} resp={resp.protocol} name="
            return bulk(shown.encode() + resp.name)
    return error("BADARG", "CLIENT SETINFO, SETNAME, GETNAME, ID or INFO")


def _is_name(name: bytes) -> bool:
    return len(name) <= NAME_BYTES_MAX and all(0x21 <= sign <= 0x7E for sign in name)


def _bad_name() -> bytes:
    return error("BADARG", f"a name is at most {NAME_BYTES_MAX} visible ASCII signs")


# ---- the node


def _command(_resp: RespSession, argv: list[bytes]) -> bytes:
    match [word.upper() for word in argv[1:2]]:
        case []:
            return array(())
        case [b"COUNT"]:
            return integer(0)
        case [b"DOCS"]:
            return mapping(())
        case [b"INFO"] | [b"LIST"]:
            return array(())
    return error("BADARG", "COMMAND [COUNT or DOCS]")


def _info(resp: RespSession, argv: list[bytes]) -> bytes:
    wanted = {word.decode("ascii", "replace").lower() for word in argv[1:]} - {"all", "default"}
    lines: list[str] = []
    server = {"server_name": "millstream", "version": __version__}
    for section, figures in {"Server": server, **resp.backend.figures()}.items():
        if not wanted or section.lower() in wanted:
            lines += [f"# {section}", *(f"{name}:{value}" for name, value in figures.items()), ""]
    return bulk("\r\n".join(lines).encode())


def _config(resp: RespSession, argv: list[bytes]) -> bytes:
    match [argv[1].upper(), argv[2].upper(), *argv[3:]] if len(argv) > 2 else []:
        case [b"GET", b"NODE", pattern] if len(pattern) <= PATTERN_BYTES_MAX:
            return _of_node(resp, pattern)
        case [b"GET", _]:
            return mapping(())
    return error("BADARG", "CONFIG GET|SET|UNSET path|GROUP|GLOBAL|NODE key ..., or GET pattern")


def _of_node(resp: RespSession, pattern: bytes) -> bytes:
    if resp.principal is not None and not resp.principal.is_admin:
        return error("NOPERM", "CONFIG of a node is for administrators")
    found = sorted(resp.backend.settings().items())
    return mapping([(key, bulk(value)) for key, value in found if in_key_pattern(key, pattern)])


def _vds(resp: RespSession, argv: list[bytes]) -> bytes | None:
    words, asker = tuple(argv), resp.asker(0)
    if not (argv[1:2] and argv[1].startswith(b"/") and argv[1] != b"/"):
        return resp.backend.vds(words, asker)
    slot = resp.slot()
    resp.backend.when_known(argv[1], lambda: slot.fill(resp.backend.vds(words, asker)))
    return None


def _admin(resp: RespSession, argv: list[bytes]) -> bytes | None:
    if resp.principal is not None and not resp.principal.is_admin:
        return error("NOPERM", "ADMIN is for administrators")
    if [word.upper() for word in argv[1:2]] == [b"USER"]:
        return user_command(resp, argv[2:])
    resp.backend.admin(tuple(argv), resp.slot().fill)
    return None


CONNECTION_COMMANDS: Final[Mapping[bytes, Handler]] = {
    b"HELLO": _hello,
    b"AUTH": _auth,
    b"PING": _ping,
    b"ECHO": _echo,
    b"QUIT": _quit,
    b"MULTI": _multi,
    b"DISCARD": _discard,
    b"EXEC": _exec,
    b"RESET": _reset,
    b"SELECT": _select,
    b"CLIENT": _client,
    b"COMMAND": _command,
    b"INFO": _info,
    b"CONFIG": _config,
    b"VDS": _vds,
    b"ADMIN": _admin,
    b"SESSION": session_command,
    b"SUBSCRIBE": subscribe_command,
    b"UNSUBSCRIBE": unsubscribe_command,
    b"NOTIFY": notify_command,
    b"SUBACK": acknowledge_command,
}
