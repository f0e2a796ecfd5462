"""What the tree of files looks like: names, control files, modes, numbers, texts.

Invariants:
1. Every element has one name as a file and every name is of one element at most.
2. The number of a file stays when its element moves, and no other file of the node has it.

Elsewhere: reading and writing them (`operations`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

from millstream.coordination.core.ninep.packets import Qid
from millstream.coordination.core.ninep.refusals import NinepError

__all__ = [
    "CONTROL_FILES",
    "TOP",
    "TOP_FILES",
    "About",
    "about_element",
    "about_top",
    "child_path",
    "file_name",
    "name_of_file",
    "number_of",
    "stat_2000",
    "text_of",
]

TOP: Final = b""
"""The path above all namespaces."""
TOP_FILES: Final = (b".vds", b".status")
CONTROL_FILES: Final = {
    b".acl": 0o666, b".attr": 0o444, b".config": 0o666, b".ctl": 0o666, b".data": 0o666,
    b".value": 0o666, b".version": 0o444,
}  # fmt: skip
"""The files by name, with the permission bits of the element that apply."""
_DIR: Final = 0x80
_APPEND: Final = 0x40
_OPEN_MODE: Final = 0o666
"""Mode of files without an owner: there are no users."""
_DMDIR: Final = 0x80000000
_DMAPPEND: Final = 0x40000000
_STAT: Final = Struct("<HHIBIQIIIQ")
"""Length, type and device of a server, qid, mode, times, size; then names."""


class About(NamedTuple):
    """What is known of a file."""

    qid: Qid
    mode: int
    """The mode with its type, as Linux has it."""
    owner: bytes = b""
    group: bytes = b""
    size: int = 0
    links: int = 1
    changed_ms: int = 0
    created_ms: int = 0
    type: bytes = b""
    """The type of the element."""

    @property
    def is_directory(self) -> bool:
        """Whether the file contains files."""
        return stat.S_ISDIR(self.mode)


def file_name(name: bytes) -> bytes:
    """Return how an element is called as a directory."""
    name = name.replace(b"%", b"%25")
    return b"%2E" + name[1:] if name.startswith(b".") else name


def name_of_file(name: bytes) -> bytes:
    """Return how the element is called whose directory this would be.

    Raises:
        NinepError: none has such a name.
    """
    found = b"." + name[3:] if name.startswith(b"%2E") else name
    found = found.replace(b"%25", b"%")
    if not found or file_name(found) != name or b"/" in found:
        raise NinepError("ERROR_DOES_NOT_EXISTS")
    return found


def child_path(path: bytes, name: bytes) -> bytes:
    """Return the path of the element whose directory has this name below another one.

    Raises:
        NinepError: ERROR_DOES_NOT_EXISTS.
    """
    return path + b"/" + name_of_file(name)


def about_top(file: bytes | None) -> About:
    """Return what is known of what is above all namespaces."""
    qid = Qid(0 if file else _DIR, 0, _hash(b"top", file or b""))
    return About(qid, stat.S_IFREG | 0o444 if file else stat.S_IFDIR | 0o777, links=2)


def about_element(path: bytes, file: bytes | None, found: Mapping[bytes, Any] | None) -> About:
    """Return what is known of an element, or of a control file of it.

    Args:
        path: of the element.
        file: which control file; None: the element itself.
        found: its attributes, by `GET ATTR`; None: they are not for whoever asks.
    """
    if found is None:
        number = _hash(b"hidden", path, file or b"")
        return About(Qid(0 if file else _DIR, 0, number), _kind(file))
    acl = found[b"acl"]
    bits = int(acl[b"mode"], 8) if acl[b"owner"] else _OPEN_MODE
    root = path[1:].partition(b"/")[0]
    number = _hash(root, found[b"created_version"], b"%d" % found[b"id"], file or b"")
    lsn = max(_lsn(found[b"version"]), _lsn(found[b"child_version"]))
    if file:
        bits &= CONTROL_FILES[file]
        kind = _APPEND if file == b".ctl" else 0
    else:
        bits, kind = bits & 0o666 | 0o111, _DIR
    is_data = file == b".data"
    return About(
        Qid(kind, lsn & 0xFFFFFFFF, number), _kind(file) | bits, acl[b"owner"], acl[b"group"],
        found[b"data_len"] if is_data else 0, 1 if file else 2 + found[b"nchildren"],
        found[b"ts"], found[b"created_ts"], found[b"type"],
    )  # fmt: skip


def _kind(file: bytes | None) -> int:
    return stat.S_IFREG if file else stat.S_IFDIR


def _lsn(version: bytes) -> int:
    return int(version.rpartition(b":")[2])


def _hash(*parts: bytes) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part)
    return int.from_bytes(digest.digest(), "little")


def number_of(name: bytes) -> int:
    """Return the number of a user or group."""
    return _hash(b"user", name) >> 33 if name else 0


def stat_2000(name: bytes, about: About) -> bytes:
    """Return what 9P2000 says of a file."""
    mode = about.mode & 0o777
    mode |= _DMDIR * about.is_directory | _DMAPPEND * (about.qid.type == _APPEND)
    seconds = about.changed_ms // 1000 & 0xFFFFFFFF
    names = [name, about.owner or b"nobody", about.group or b"nobody", b""]
    tail = b"".join(len(one).to_bytes(2, "little") + one for one in names)
    length = _STAT.size - 2 + len(tail)
    size = 0 if about.is_directory else about.size
    head = _STAT.pack(length, 0, 0, *about.qid, mode, seconds, seconds, size)
    return head + tail


def text_of(value: Any) -> bytes:
    """Return a reply as lines."""
    if isinstance(value, Mapping):
        return b"".join(name + b" " + _word(item) + b"\n" for name, item in value.items())
    if isinstance(value, (list, tuple, set)):
        return b"".join(_item(item) + b"\n" for item in _in_order(value))
    return _item(value) + b"\n"


def _in_order(value: Iterable[Any]) -> Iterable[Any]:
    return sorted(value) if isinstance(value, set) else value


def _item(value: Any) -> bytes:
    if isinstance(value, bytes):
        try:
            is_shown = value.decode().isprintable()
        except UnicodeDecodeError:
            is_shown = False
        return value if is_shown else base64.b64encode(value)
    return _word(value)


def _word(value: Any) -> bytes:
    if isinstance(value, bytes):
        return _item(value)
    if isinstance(value, (Mapping, list, tuple, set)):
        return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":")).encode()
    return b"" if value is None else str(value).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_item(name).decode(): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in _in_order(value)]
    return _item(value).decode() if isinstance(value, bytes) else value
