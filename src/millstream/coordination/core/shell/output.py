"""How the shell shows a reply to people, as V2R2 prints it.

    "text"            data            OK, 13            statuses and numbers
    /app/a, aaa       paths, names    CAS: 1:2:3        versions and tokens
    key: value        maps            CODE words        errors

Invariants:
1. Data is in quotes, with escapes as the shell reads them: no byte of it reaches the terminal.
2. What is not data is shown as it is, if it can be printed; else as data.

Source: V2R2, the examples of its API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millstream.coordination.core.shell.commands import without_prefixes
from millstream.coordination.core.shell.replies import Reply

__all__ = ["is_pending", "pretty", "quoted"]

_PENDING: Final = b"PENDING"
_ESCAPES: Final = {0x5C: "\\\\", 0x22: '\\"', 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
_DATA_OF: Final = frozenset((b"GET", b"SET", b"QUEUE", b"EXEC", b"ECHO", b"PING"))
"""Commands whose strings are data."""
_DATA_KEYS: Final = frozenset((b"data",))


def is_pending(reply: Reply) -> bool:
    """Whether the reply says that the command waits."""
    return reply.text == _PENDING or reply.words[:1] == (_PENDING,)


def pretty(words: Sequence[bytes], reply: Reply) -> list[str]:
    """Return the lines that show a reply to a command; or to none (no words), a push."""
    if not words:
        return _push(reply)
    named = [word.upper() for word in without_prefixes(words)]
    if reply.sign == b"=" or named[0] == b"INFO":
        return reply.text.decode("utf-8", "replace").splitlines()
    if named[0] == b"GET" and b"CAS" in named[2:] and len(reply.parts) == 2:
        version, data = reply.parts
        return [f"CAS: {_bare(version)}", *_lines(data, is_data=True)]
    if _is_page(named):
        return _page(reply, is_data=named[0] == b"SET")
    if named[0] in (b"LOCK", b"SEMAPHORE", b"ELECT") and len(reply.parts) > 1:
        return _waiting(named, reply)
    if named[:2] == [b"QUEUE", b"TAKE"] and reply.parts:
        return [_taken(item) for item in reply.parts]
    is_data = named[0] in _DATA_OF or (named[0] == b"LIST" and len(named) > 1)
    if named[0] == b"QUEUE" and named[1:2] == [b"PUSH"]:
        is_data = False
    return _lines(reply, is_data=is_data)


def quoted(text: bytes) -> str:
    """Return data in quotes."""
    try:
        shown = text.decode()
        is_text = all(sign.isprintable() or sign in "\n\r\t" for sign in shown)
    except UnicodeDecodeError:
        is_text = False
    if is_text:
        return '"' + shown.translate(_ESCAPES) + '"'
    parts = [
        _ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")
        for byte in text
    ]
    return '"' + "".join(parts) + '"'


# ---- by command


def _is_page(named: Sequence[bytes]) -> bool:
    if named[0] == b"LIST":
        return named[1:2] != [] and named[1].startswith(b"/")
    return named[0] == b"SET" and named[1:2] == [b"MEMBERS"]


def _page(reply: Reply, *, is_data: bool) -> list[str]:
    """Return the token that goes on, if there is one, and what is on this page."""
    if len(reply.parts) != 2:
        return _lines(reply, is_data=is_data)
    token, names = reply.parts
    head = [] if token.sign == b"_" else [f"TOKEN: {_bare(token)}"]
    return head + [_one(name, is_data=is_data) for name in names.parts]


def _waiting(named: Sequence[bytes], reply: Reply) -> list[str]:
    if reply.sign == b"%":
        return _lines(reply, is_data=False)
    first, *rest = reply.parts
    if is_pending(reply):
        return [_bare(first), " ".join(map(_bare, rest))]
    if named[1:2] == [b"LEADER"]:
        client, token, data = reply.parts
        return [f"CLIENT: {_bare(client)}", f"TOKEN: {_bare(token)}", _one(data, is_data=True)]
    return [_bare(first), *(f"TOKEN: {_bare(part)}" for part in rest)]


def _taken(item: Reply) -> str:
    number, data, deliveries = item.parts
    return f"{_bare(number)} {_one(data, is_data=True)} {_bare(deliveries)}"


def _push(reply: Reply) -> list[str]:
    if len(reply.parts) == 3 and reply.parts[0].text == b"message":
        return [f"{_bare(reply.parts[1])} {_bare(reply.parts[2])}"]
    return [" ".join(map(_bare, reply.parts))]


# ---- in general


def _lines(reply: Reply, *, is_data: bool) -> list[str]:
    if reply.sign == b"%":
        return _map(reply, is_data=is_data)
    if reply.sign not in (b"*", b"~", b">"):
        return [_one(reply, is_data=is_data)]
    if not reply.parts:
        return ["(empty)"]
    lines: list[str] = []
    for part in reply.parts:
        if part.sign == b"%":
            lines += [*_map(part, is_data=is_data), ""]
        else:
            lines.append(_one(part, is_data=is_data))
    return lines


def _map(reply: Reply, *, is_data: bool) -> list[str]:
    lines: list[str] = []
    for key, value in zip(reply.parts[::2], reply.parts[1::2], strict=True):
        name = _bare(key)
        is_shown = is_data and (key.text in _DATA_KEYS or key.text.startswith(b"u."))
        if value.sign == b"%" and value.parts:
            lines += [f"{name}:", *(f"    {line}" for line in _map(value, is_data=is_data))]
        else:
            lines.append(f"{name}: {_one(value, is_data=is_shown)}")
    return lines or ["(empty)"]


def _one(reply: Reply, *, is_data: bool) -> str:
    """Return a value in one line."""
    if reply.sign == b"%":
        pairs = zip(reply.parts[::2], reply.parts[1::2], strict=True)
        shown = [f"{_bare(key)}: {_one(value, is_data=is_data)}" for key, value in pairs]
        return "{" + ", ".join(shown) + "}" if shown else "(empty)"
    if reply.sign in (b"*", b"~", b">"):
        return " ".join(_one(part, is_data=is_data) for part in reply.parts) or "(empty)"
    if reply.sign == b"$" and is_data:
        return quoted(reply.text)
    return _bare(reply)


def _bare(reply: Reply) -> str:
    if reply.sign == b"_":
        return "(nothing)"
    if reply.sign == b"#":
        return "true" if reply.text == b"t" else "false"
    if reply.sign in (b"*", b"~", b">", b"%"):
        return _one(reply, is_data=False)
    try:
        text = reply.text.decode()
    except UnicodeDecodeError:
        return quoted(reply.text)
    return text if text.isprintable() and text else quoted(reply.text)
