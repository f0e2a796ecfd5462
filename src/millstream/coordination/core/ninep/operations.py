"""What each 9P message does: the commands that it sends, and the reply made of theirs.

Invariants:
1. An operation that fails changes no fid.
2. An operation waits only where it yields.

Elsewhere: locks (`locking`), reading and writing (`contents`), the look of files (`files`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from millstream.coordination.core.ninep.contents import (
    ask,
    look_at,
    read,
    read_directory,
    truncate,
    write,
)
from millstream.coordination.core.ninep.fids import (
    Ask,
    Desk,
    Fid,
    Job,
    Login,
    Logout,
    Opened,
    Work,
)
from millstream.coordination.core.ninep.files import (
    CONTROL_FILES,
    TOP,
    TOP_FILES,
    About,
    child_path,
    file_name,
    number_of,
    stat_2000,
)
from millstream.coordination.core.ninep.lines import is_within
from millstream.coordination.core.ninep.locking import lock, query_lock, unlock
from millstream.coordination.core.ninep.packets import NO_FID, Kind, Qid
from millstream.coordination.core.ninep.refusals import NinepError

__all__ = ["OPERATIONS", "Operation"]

Operation = Callable[[Desk, Job, tuple[Any, ...]], Work]
_AUTH_QID: Final = Qid(0x08, 0, 1)
_IO_HEAD: Final = 24
"""Bytes of the head of a message with data."""
_WRITE_ONLY, _READ_WRITE, _ACCESS = 1, 2, 3
_LINUX_TRUNCATE: Final = 0o1000
_PLAN9_TRUNCATE: Final = 0x10
_PLAN9_REMOVE: Final = 0x40
_DMDIR: Final = 0x80000000
_REMOVEDIR: Final = 0x200
_SET_MODE, _SET_UID, _SET_GID, _SET_SIZE = 1, 2, 4, 8
_GETATTR_BASIC: Final = 0x7FF
_V9FS_MAGIC: Final = 0x01021997
_ELEMENTS_MAX: Final = 1_000_000
_SAME: Final = {"length": (1 << 64) - 1, "number": (1 << 32) - 1}


# ---- beginning


def _auth(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    yield from ()
    afid, user = values[0], values[1]
    if not desk.asks_login():
        raise NinepError("ERROR_DOES_NOT_EXISTS")
    fid = Fid(0, TOP, TOP)
    fid.user = user.decode()
    desk.put(afid, fid)
    return (_AUTH_QID,)


def _attach(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    number, afid, user, aname = values[:4]
    desk.check_free(number)
    login = _login(desk, afid, user)
    attach = desk.new_attach()
    root = TOP if aname in (b"", b"/") else aname
    fid = Fid(attach, root, root)
    desk.put(number, fid)
    yield Login(attach, *login)
    try:
        yield from ask(Ask(attach, (b"SESSION", b"INFO")))
        about = yield from look_at(fid)
    except NinepError:
        if desk.fids.get(number) is fid:
            yield from _drop(desk, number)
        raise
    return (about.qid,)


def _login(desk: Desk, afid: int, user: bytes) -> tuple[str | None, str]:
    if not desk.asks_login():
        return None, ""
    known = desk.fids.get(afid)
    if afid == NO_FID or known is None or known.attach or known.user != user.decode():
        raise NinepError("NOAUTH")
    return known.user, known.secret.decode("utf-8", "replace").rstrip("\n")


def _clunk(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    fid = desk.fids.get(values[0])
    if fid is None:
        raise NinepError("BADFID")
    if fid.is_locked:
        yield from unlock(fid)
    if desk.fids.get(values[0]) is fid:
        yield from _drop(desk, values[0])
    return ()


def _drop(desk: Desk, number: int) -> Work:
    """Forget a fid, and the session with the last one of its tree."""
    if ended := desk.drop(number):
        yield Logout(ended)
    return ()


# ---- walking and looking


def _walk(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    number, new, names = values
    fid = desk.fid(number)
    if fid.opened is not None and new == number:
        raise NinepError("BADFID")
    if new != number:
        desk.check_free(new)
    here = Fid(fid.attach, fid.root, fid.path, fid.file)
    qids: list[Qid] = []
    for name in names:
        try:
            here = _step(here, name)
            qids.append((yield from look_at(here)).qid)
        except NinepError:
            if not qids:
                raise
            return (tuple(qids),)
    if new != number:
        desk.put(new, here)
    elif desk.fids.get(number) is fid:
        fid.path, fid.file = here.path, here.file
    return (tuple(qids),)


def _step(fid: Fid, name: bytes) -> Fid:
    if fid.file is not None:
        raise NinepError("NOT_A_DIRECTORY")
    if name == b".":
        return Fid(fid.attach, fid.root, fid.path)
    if name == b"..":
        above = fid.path if fid.path == fid.root else fid.path.rpartition(b"/")[0]
        return Fid(fid.attach, fid.root, above)
    files = CONTROL_FILES if fid.path else TOP_FILES
    if name in files:
        return Fid(fid.attach, fid.root, fid.path, name)
    if name.startswith(b"."):
        raise NinepError("ERROR_DOES_NOT_EXISTS")
    return Fid(fid.attach, fid.root, child_path(fid.path, name))


def _getattr(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    about = yield from look_at(desk.fid(values[0]))
    seconds, rest = divmod(about.changed_ms, 1000)
    time = (seconds, rest * 1_000_000)
    born, born_rest = divmod(about.created_ms, 1000)
    return (
        _GETATTR_BASIC, about.qid, about.mode, number_of(about.owner), number_of(about.group),
        about.links, 0, about.size, 4096, (about.size + 511) // 512, *time, *time, *time,
        born, born_rest * 1_000_000, 0, about.qid.version,
    )  # fmt: skip


def _stat(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    fid = desk.fid(values[0])
    about = yield from look_at(fid)
    return (stat_2000(_name(fid), about),)


def _name(fid: Fid) -> bytes:
    if fid.file is not None:
        return fid.file
    return b"/" if fid.path == fid.root else file_name(fid.path.rpartition(b"/")[2])


def _statfs(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    yield from ()
    desk.fid(values[0])
    free = _ELEMENTS_MAX
    return (_V9FS_MAGIC, 4096, free, free, free, free, free, 0, 255)


# ---- opening


def _lopen(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    number, flags = values
    return (yield from _open(desk, number, flags & _ACCESS, bool(flags & _LINUX_TRUNCATE)))


def _open_2000(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    number, mode = values
    if mode & _PLAN9_REMOVE:
        raise NinepError("UNSUPPORTED")
    access = 0 if mode & _ACCESS == _ACCESS else mode & _ACCESS
    return (yield from _open(desk, number, access, bool(mode & _PLAN9_TRUNCATE)))


def _open(desk: Desk, number: int, access: int, is_truncated: bool) -> Work:
    fid = desk.fid(number)
    if fid.opened is not None:
        raise NinepError("BADFID")
    is_writable = access in (_WRITE_ONLY, _READ_WRITE)
    if is_writable and fid.file is None:
        raise NinepError("IS_A_DIRECTORY")
    about = yield from look_at(fid)
    if is_writable and (not fid.path or CONTROL_FILES[fid.file or b""] == 0o444):
        raise NinepError("NOPERM")
    opened = Opened(is_writable=is_writable)
    if is_truncated and is_writable and fid.file == b".data":
        yield from truncate(fid)
        opened.content = b""
    fid.opened = opened
    return about.qid, desk.msize - _IO_HEAD


def _refuse(_desk: Desk, _job: Job, _values: tuple[Any, ...]) -> Work:
    yield from ()
    raise NinepError("UNSUPPORTED")


def _refuse_file(_desk: Desk, _job: Job, _values: tuple[Any, ...]) -> Work:
    yield from ()
    raise NinepError("PERM")


# ---- changing the tree


def _mkdir(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    about = yield from _create(desk.directory(values[0]), values[1])
    return (about.qid,)


def _create(fid: Fid, name: bytes) -> Any:
    if name.startswith(b"."):
        raise NinepError("PERM")
    made = Fid(fid.attach, fid.root, child_path(fid.path, name))
    words = (b"CREATE", b"BINARY", made.path) if fid.path else (b"CREATENAMESPACE", made.path)
    if (yield from ask(Ask(fid.attach, words, is_change=True))) == b"EXISTS":
        raise NinepError("EXISTS")
    return (yield from look_at(made))


def _create_2000(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    number, name, mode, _ = values
    fid = desk.directory(number)
    if not mode & _DMDIR:
        raise NinepError("PERM")
    about = yield from _create(fid, name)
    fid.path = child_path(fid.path, name)
    fid.opened = Opened(is_writable=False)
    return about.qid, desk.msize - _IO_HEAD


def _unlink(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    number, name, flags = values
    gone = _step(desk.directory(number), name)
    if gone.file is None and not flags & _REMOVEDIR:
        raise NinepError("IS_A_DIRECTORY")
    yield from _delete(gone)
    return ()


def _remove(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    fid = desk.fid(values[0])
    try:
        yield from _delete(fid)
    finally:
        if desk.fids.get(values[0]) is fid:
            yield from _drop(desk, values[0])
    return ()


def _delete(fid: Fid) -> Work:
    if fid.file is not None or fid.path == fid.root:
        raise NinepError("PERM")
    is_root = fid.path.count(b"/") == 1
    words = (b"DELETENAMESPACE" if is_root else b"DELETE", fid.path)
    yield from ask(Ask(fid.attach, words, is_change=True))
    return ()


def _rename_at(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    old, name, new, new_name = values
    source = _step(desk.directory(old), name)
    yield from _move(desk, source, desk.directory(new), new_name)
    return ()


def _rename(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    number, new, name = values
    yield from _move(desk, desk.fid(number), desk.directory(new), name)
    return ()


def _move(desk: Desk, source: Fid, directory: Fid, name: bytes) -> Work:
    if source.file is not None or name.startswith(b".") or source.path == source.root:
        raise NinepError("PERM")
    old, new = source.path, child_path(directory.path, name)
    yield from ask(Ask(source.attach, (b"MOVE", old, new), is_change=True))
    for fid in desk.fids.values():
        if fid.attach and is_within(fid.path, old):
            fid.path = new + fid.path[len(old) :]
    source.path = new
    return ()


# ---- changing attributes


def _setattr(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    number, valid, mode, uid, gid, size = values[:6]
    fid = desk.fid(number)
    yield from _set(
        fid,
        mode if valid & _SET_MODE else None,
        uid if valid & _SET_UID else None,
        gid if valid & _SET_GID else None,
    )
    if valid & _SET_SIZE:
        yield from _resize(fid, size)
    return ()


def _set(fid: Fid, mode: int | None, uid: int | None = None, gid: int | None = None) -> Work:
    """Change mode and owners; users and groups are known by name, so they can only stay."""
    if mode is None and uid is None and gid is None:
        return ()
    if not fid.path:
        raise NinepError("PERM")
    about: About = yield from look_at(fid)
    for wanted, there in ((uid, about.owner), (gid, about.group)):
        if wanted is not None and wanted != number_of(there):
            raise NinepError("PERM")
    if mode is not None:
        words = (b"ACL", b"SET", fid.path, b"MODE", b"%03o" % (mode & 0o777))
        yield from ask(Ask(fid.attach, words, is_change=True))
    return ()


def _resize(fid: Fid, size: int) -> Work:
    if fid.file is None:
        raise NinepError("IS_A_DIRECTORY")
    if fid.file != b".data":
        return ()
    if size:
        raise NinepError("BADARG")
    yield from truncate(fid)
    if fid.opened is not None:
        fid.opened.content = None
    return ()


def _wstat(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    number, data = values
    fid = desk.fid(number)
    if len(data) < 49:
        raise NinepError("BADARG")
    mode = int.from_bytes(data[21:25], "little")
    length = int.from_bytes(data[33:41], "little")
    size = int.from_bytes(data[41:43], "little")
    name = data[43 : 43 + size]
    if mode != _SAME["number"]:
        yield from _set(fid, mode)
    if length != _SAME["length"]:
        yield from _resize(fid, length)
    if name and name != _name(fid):
        above = Fid(fid.attach, fid.root, fid.path.rpartition(b"/")[0])
        yield from _move(desk, fid, above, name)
    return ()


def _fsync(desk: Desk, _job: Job, values: tuple[Any, ...]) -> Work:
    yield from ()
    desk.fid(values[0])
    return ()


OPERATIONS: Final[Mapping[Kind, Operation]] = {
    Kind.Tauth: _auth, Kind.Tattach: _attach, Kind.Tclunk: _clunk, Kind.Twalk: _walk,
    Kind.Tread: read, Kind.Twrite: write, Kind.Tremove: _remove,
    Kind.Tgetattr: _getattr, Kind.Tsetattr: _setattr, Kind.Tstatfs: _statfs,
    Kind.Tlopen: _lopen, Kind.Treaddir: read_directory, Kind.Tmkdir: _mkdir,
    Kind.Tunlinkat: _unlink, Kind.Trenameat: _rename_at, Kind.Trename: _rename,
    Kind.Tfsync: _fsync, Kind.Tlock: lock, Kind.Tgetlock: query_lock,
    Kind.Tlcreate: _refuse_file, Kind.Tlink: _refuse_file, Kind.Tsymlink: _refuse_file,
    Kind.Tmknod: _refuse_file, Kind.Treadlink: _refuse, Kind.Txattrwalk: _refuse,
    Kind.Txattrcreate: _refuse,
    Kind.Topen: _open_2000, Kind.Tcreate: _create_2000, Kind.Tstat: _stat, Kind.Twstat: _wstat,
}  # fmt: skip
