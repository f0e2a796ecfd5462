"""Reads and writes files: the requests, and the part of the reply that fits into a message.

Invariants:
1. Reading an open file from its beginning to its end returns one state of it.
2. Every write is one change. It is answered when the change is committed.
3. A directory is listed by positions: `.`, `..`, control files, then the current children.

Elsewhere: the look of files (`files`), lines of commands (`lines`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from millstream.coordination.core.ninep.fids import Ask, Desk, Failed, Fid, Job, Opened, Work
from millstream.coordination.core.ninep.files import (
    CONTROL_FILES,
    TOP_FILES,
    About,
    about_element,
    about_top,
    file_name,
    stat_2000,
    text_of,
)
from millstream.coordination.core.ninep.lines import Line, understand
from millstream.coordination.core.ninep.refusals import NinepError

__all__ = [
    "DATA_BYTES_MAX",
    "STEP_MAX",
    "ask",
    "look_at",
    "read",
    "read_directory",
    "truncate",
    "write",
]

STEP_MAX: Final = 128
"""Names of a directory that are looked at for one message."""
DATA_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of an element. More is refused before it is sent."""
_DIR_TYPE, _FILE_TYPE = 4, 8


# ---- asking


def ask(one: Ask) -> Generator[list[Ask], list[Any], Any]:
    """Run a command. Return its reply.

    Raises:
        NinepError: it was not done.
    """
    (answer,) = yield [one]
    if isinstance(answer, Failed):
        raise NinepError(answer.code)
    return answer


def look_at(fid: Fid) -> Generator[list[Ask], list[Any], About]:
    """Return what is known of a file.

    Raises:
        NinepError: ERROR_DOES_NOT_EXISTS, among others.
    """
    if not fid.path:
        return about_top(fid.file)
    (answer,) = yield [_attributes_of(fid.attach, fid.path)]
    return _about(fid.path, fid.file, answer)


def _attributes_of(attach: int, path: bytes) -> Ask:
    return Ask(attach, (b"GET", path, b"ATTR", b"NODATA"))


def _about(path: bytes, file: bytes | None, answer: Any) -> About:
    if isinstance(answer, Failed):
        if answer.code != "NOPERM":
            raise NinepError(answer.code)
        answer = None
    about = about_element(path, file, answer)
    if file == b".value" and about.type != b"COUNTER":
        raise NinepError("ERROR_DOES_NOT_EXISTS")
    return about


# ---- reading


def read(desk: Desk, job: Job, values: tuple[Any, ...]) -> Work:
    """Tread."""
    number, offset, count = values
    fid = desk.fids.get(number)
    if fid is None or fid.opened is None:
        raise NinepError("BADFID")
    if fid.file is None:
        if desk.is_linux:
            raise NinepError("IS_A_DIRECTORY")
        return (yield from _read_stats(desk, fid, offset, count))
    opened = fid.opened
    if opened.content is None or (offset == 0 and fid.file != b".ctl"):
        content = b"" if fid.file == b".ctl" else (yield from _content(fid))
        if fid.opened is not opened or desk.fids.get(number) is not fid:
            raise NinepError("BADFID")
        desk.keep(opened, content)
    assert opened.content is not None
    count = min(count, desk.msize - 24)
    return (opened.content[offset : offset + count],)


def _content(fid: Fid) -> Generator[list[Ask], list[Any], bytes]:
    path = fid.path
    match fid.file:
        case b".vds":
            words: tuple[bytes, ...] = (b"VDS",)
        case b".status":
            words = (b"INFO",)
        case b".attr" | b".version":
            words = (b"GET", path, b"ATTR", b"NODATA")
        case b".acl":
            words = (b"ACL", b"GET", path)
        case b".config":
            words = (b"CONFIG", b"GET", path, b"*")
        case _:
            words = (b"GET", path)
    reply = yield from ask(Ask(fid.attach, words))
    if fid.file == b".data" and isinstance(reply, bytes):
        return reply
    if fid.file == b".version":
        reply = reply[b"version"]
    if fid.file == b".status" and isinstance(reply, bytes):
        return reply.replace(b"\r\n", b"\n")
    return text_of(reply)


# ---- writing


def write(desk: Desk, job: Job, values: tuple[Any, ...]) -> Work:
    """Twrite: of data, everything written so far is put; of other files, it is one command."""
    number, offset, data = values
    fid = desk.fids.get(number)
    if fid is not None and not fid.attach:
        desk.add_secret(fid, offset, data)
        return (len(data),)
    if fid is None or fid.opened is None or not fid.opened.is_writable:
        raise NinepError("BADFID")
    if fid.file == b".data":
        yield from _put(desk, fid, fid.opened, offset, data)
    else:
        line = _line(fid, data)
        reply = yield from ask(Ask(fid.attach, line.words, line.is_change))
        if fid.file == b".ctl" and desk.fids.get(number) is fid:
            desk.keep(fid.opened, text_of(reply))
    return (len(data),)


def _put(desk: Desk, fid: Fid, opened: Opened, offset: int, data: bytes) -> Work:
    content = opened.content
    if content is None:
        content = yield from ask(Ask(fid.attach, (b"GET", fid.path)))
    if not isinstance(content, bytes):
        raise NinepError("WRONGTYPE")
    if offset > len(content):
        raise NinepError("BADARG")
    whole = content[:offset] + data + content[offset + len(data) :]
    if len(whole) > DATA_BYTES_MAX:
        raise NinepError("TOOBIG")
    yield from ask(Ask(fid.attach, (b"PUT", fid.path, whole), is_change=True))
    if fid.opened is opened and fid in desk.fids.values():
        desk.keep(opened, whole)
    return ()


def truncate(fid: Fid) -> Work:
    """Make the data empty."""
    yield from ask(Ask(fid.attach, (b"PUT", fid.path, b""), is_change=True))
    return ()


def _line(fid: Fid, data: bytes) -> Line:
    text = data.rstrip(b"\n")
    if b"\n" in text:
        raise NinepError("BADARG")
    match fid.file:
        case b".acl":
            text = b"acl set " + text
        case b".config":
            text = b"config set " + text
        case b".value":
            text = _counted(text.strip())
    return understand(text, fid.path, fid.root)


def _counted(text: bytes) -> bytes:
    if text == b"0":
        return b"counter reset"
    if text[:1] not in (b"+", b"-") or not text[1:].isdigit():
        raise NinepError("BADARG")
    return (b"counter inc " if text[:1] == b"+" else b"counter dec ") + text[1:]


# ---- directories


def read_directory(desk: Desk, job: Job, values: tuple[Any, ...]) -> Work:
    """Treaddir: entries with the position of the next one."""
    number, offset, count = values
    fid = desk.directory(number)
    if fid.opened is None:
        raise NinepError("BADFID")
    if offset == 0:
        desk.forget_names(fid.opened)
    room, at = min(count, desk.msize - 24), offset
    found: list[bytes] = []
    for position, name, about in (yield from _entries(desk, fid, fid.opened, offset)):
        at = position + 1
        if about is None:
            continue
        entry = _entry(about, at, name)
        if len(entry) > room:
            if not found:
                raise NinepError("BADARG")
            break
        room -= len(entry)
        found.append(entry)
    if not found and at == offset + STEP_MAX:  # all of them have vanished: go on behind them
        return (yield from read_directory(desk, job, (number, at, count)))
    return (b"".join(found),)


def _entry(about: About, cookie: int, name: bytes) -> bytes:
    kind = _DIR_TYPE if about.is_directory else _FILE_TYPE
    qid = about.qid.type.to_bytes(1, "little") + about.qid.version.to_bytes(4, "little")
    qid += about.qid.path.to_bytes(8, "little")
    head = qid + cookie.to_bytes(8, "little") + kind.to_bytes(1, "little")
    return head + len(name).to_bytes(2, "little") + name


def _read_stats(desk: Desk, fid: Fid, offset: int, count: int) -> Work:
    """Tread of a directory in 9P2000: whole stats, on from where the last one ended."""
    opened = fid.opened
    assert opened is not None
    if offset == 0:
        desk.forget_names(opened)
    if offset != opened.next_offset:
        raise NinepError("BADARG")
    room = min(count, desk.msize - 24)
    found: list[bytes] = []
    first = max(opened.position, 2)
    for position, name, about in (yield from _entries(desk, fid, opened, first)):
        data = stat_2000(name, about) if about is not None else b""
        if len(data) > room:
            if not found:
                raise NinepError("BADARG")
            break
        room -= len(data)
        found.append(data)
        opened.position = position + 1
    data = b"".join(found)
    opened.next_offset += len(data)
    return (data,)


Entries = list[tuple[int, bytes, About | None]]


def _entries(
    desk: Desk, fid: Fid, opened: Opened, first: int
) -> Generator[list[Ask], list[Any], Entries]:
    """Return positions, names and files from a position on; None: it has vanished."""
    about = yield from look_at(fid)
    files = _files(fid, about)
    head = [b".", b"..", *files]
    wanted = first + STEP_MAX - len(head)
    while len(opened.names) < wanted and opened.token is not None:
        yield from _list_more(desk, fid, opened)
    names = opened.names[max(first - len(head), 0) : max(wanted, 0)]
    known: Any = None
    if fid.path and first < len(head):
        (known,) = yield [_attributes_of(fid.attach, fid.path)]
    shown: Entries = []
    for position, name in enumerate(head[first:], first):
        file = name if name in files else None
        at_top = None if fid.path else about_top(file)
        shown.append((position, name, at_top or _vanishing(fid.path, known, file)))
    paths = [fid.path + b"/" + name for name in names]
    answers = (yield [_attributes_of(fid.attach, path) for path in paths]) if paths else []
    start = max(first, len(head))
    for position, name, path, answer in zip(
        range(start, start + len(names)), names, paths, answers, strict=True
    ):
        shown.append((position, file_name(name), _vanishing(path, answer)))
    return shown


def _files(fid: Fid, about: About) -> list[bytes]:
    if not fid.path:
        return list(TOP_FILES)
    return [name for name in CONTROL_FILES if name != b".value" or about.type == b"COUNTER"]


def _list_more(desk: Desk, fid: Fid, opened: Opened) -> Generator[list[Ask], list[Any], None]:
    from_there = (b"TOKEN", opened.token) if opened.token else ()
    token, names = yield from ask(Ask(fid.attach, (b"LIST", fid.path or b"/", *from_there)))
    opened.token = token
    desk.keep_names(opened, names)


def _vanishing(path: bytes, answer: Any, file: bytes | None = None) -> About | None:
    try:
        return _about(path, file, answer)
    except NinepError:
        return None
