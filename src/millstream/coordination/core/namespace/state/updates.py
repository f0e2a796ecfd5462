"""Updates: what an entry did to elements, as subscribers receive it.

Invariants:
1. An update describes the moment of its entry: path, type and data as they were then.
2. It belongs to a subscription at most once: those of its element, in all scopes; those of the
   children of its parent, if a child was added or removed; those of the trees around it. A move
   belongs to both sides.
3. A subscriber of an element alone learns that its children changed, not which.
4. A subscriber learns of an element only what it could read as of that entry (`seen_by`): nothing
   if an access list forbids reading it, except names that its parent shows; no data while another
   session has a WRITE lock there.

Elsewhere: commands (`run`), kept updates (`marks`), subscribers (`audience`).

Source: V2R2, "Subscribe to an element".
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.state.access_lists import Readers, passes
from millstream.coordination.core.namespace.state.elements import Elements
from millstream.coordination.core.namespace.state.run import Asker, Happened, Run
from millstream.vsr.core.versions import Version

__all__ = [
    "Place",
    "Scope",
    "Sight",
    "Update",
    "as_seen",
    "decode_update",
    "encode_update",
    "payload",
    "remark",
    "seen_by",
    "updates_of",
]

_HEAD: Final = Struct(">QIIQBBIIBHI")
_NO_DATA: Final = 0xFFFFFFFF
_IS_DELETED, _HAS_READERS = 1, 2
"""Flags of an update."""
_OTHER_CHILDREN: Final = (b"create", b"delete", b"move")


class Scope(IntEnum):
    """How much of the tree a subscription is about."""

    ELEMENT = 0
    CHILDREN = 1
    """The element, and which children it has."""
    TREE = 2


class Place(NamedTuple):
    """What a mark or a subscription is about."""

    element: int
    scope: Scope


class Update(NamedTuple):
    """One of the effects of an entry; `to` is where it was moved to, if it was."""

    lsn: int
    epoch: int
    view: int
    ts_ms: int
    op: bytes
    path: bytes
    to: bytes
    type: bytes
    client: bytes
    data: bytes | None
    is_deleted: bool
    readers: Readers | None = None
    """The readers. None: an earlier version kept it, which did not note them."""


def updates_of(
    run: Run, elements: Elements, is_wanted: Callable[[Place], bool]
) -> dict[Place, list[Update]]:
    """Return what an entry has done so far in those places that somebody wants to know of."""
    found: dict[Place, list[Update]] = {}
    for happened in run.happened:
        for place in dict.fromkeys(_places(happened)):
            if not is_wanted(place):
                continue
            update = _update(run, happened, elements)
            if place.scope is Scope.ELEMENT and place.element != happened.line[0]:
                parent = elements.get(place.element)
                if parent is None:
                    continue  # it has ended with this entry
                path = elements.path(place.element)
                update = update._replace(
                    op=b"child", path=path, to=b"", type=parent.type.text, data=None,
                    is_deleted=False, readers=elements.readers(place.element),
                )  # fmt: skip
            found.setdefault(place, []).append(update)
    return found


def _places(happened: Happened) -> Iterator[Place]:
    for line in (happened.line, happened.to_line):
        if line:
            yield Place(line[0], Scope.ELEMENT)
            yield Place(line[0], Scope.CHILDREN)
            for element in line:
                yield Place(element, Scope.TREE)
            if happened.op in _OTHER_CHILDREN and len(line) > 1:
                yield Place(line[1], Scope.ELEMENT)
                yield Place(line[1], Scope.CHILDREN)


def _update(run: Run, happened: Happened, elements: Elements) -> Update:
    version, readers = run.version, happened.readers
    if readers is not None and elements.get(happened.line[0]) is not None:
        holder = readers.holder
        readers = readers.narrowed(elements.readers(happened.line[0]))._replace(holder=holder)
    return Update(
        version.lsn, version.epoch, version.view, run.ts_ms, happened.op, happened.path,
        happened.to, happened.type, run.client, happened.data, happened.is_deleted, readers,
    )  # fmt: skip


class Sight(IntEnum):
    """How much of an update a subscriber may hear."""

    NOTHING = 0
    NAME = 1
    """What became of an element that its parent shows; neither data nor who did it."""
    NO_DATA = 2
    ALL = 3


def seen_by(update: Update, asker: Asker, uses: Callable[[bytes], bool]) -> Sight:
    """Return how much a subscriber may hear of an update; `uses`: whether a session is its own."""
    readers = update.readers
    if readers is None:
        return Sight.ALL if passes(asker) else Sight.NO_DATA
    if not readers.may_read(asker):
        is_shown = update.op in _OTHER_CHILDREN and readers.may_see(asker)
        return Sight.NAME if is_shown else Sight.NOTHING
    is_hidden = bool(readers.holder) and not uses(readers.holder)
    return Sight.NO_DATA if is_hidden else Sight.ALL


def as_seen(updates: Sequence[Update], sights: Sequence[Sight]) -> list[Update]:
    """Return the updates with only what may be heard of them."""
    seen = []
    for update, sight in zip(updates, sights, strict=True):
        if sight is Sight.ALL:
            seen.append(update)
        elif sight is Sight.NO_DATA:
            seen.append(update._replace(data=None))
        elif sight is Sight.NAME:
            seen.append(update._replace(data=None, client=b""))
    return seen


def payload(update: Update, part: int, parts: int, with_data: bool) -> bytes:
    """Return the message about an update. Its entry has so many updates in all."""
    told: dict[str, object] = {
        "lsn": update.lsn,
        "version": f"{update.epoch}:{update.view}:{update.lsn}",
        "op": update.op.decode(),
        "path": update.path.decode(),
    }
    if update.to:
        told["to"] = update.to.decode()
    told["type"], told["ts"] = update.type.decode(), update.ts_ms
    if update.client:
        told["client"] = update.client.decode()
    if with_data and update.data is not None:
        told["data"] = b64encode(update.data).decode()
    if update.is_deleted:
        told["del"] = True
    if parts > 1:
        told["part"], told["parts"] = part, parts
    return _json(told)


def remark(op: str, lsn: int, version: Version | None = None) -> bytes:
    """Return a message about a subscription itself: start, progress, overrun, denied.

    `version`: of the entry at that LSN, which says what history it is of; None: it is not known.
    """
    told: dict[str, object] = {"op": op, "lsn": lsn}
    return _json(told if version is None else {**told, "version": version.text.decode()})


def _json(told: dict[str, object]) -> bytes:
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


def encode_update(update: Update) -> bytes:
    """Return the bytes of an update."""
    texts = (update.op, update.path, update.to, update.type, update.client)
    data = update.data
    return b"".join(
        (
            _HEAD.pack(
                update.lsn, update.epoch, update.view, update.ts_ms,
                _IS_DELETED * update.is_deleted | _HAS_READERS * (update.readers is not None),
                *map(len, texts), _NO_DATA if data is None else len(data),
            ),
            *texts,
            data or b"",
            b"" if update.readers is None else update.readers.encode(),
        )
    )  # fmt: skip


def decode_update(data: bytes, at: int = 0) -> tuple[Update, int]:
    """Return the update that `encode_update` wrote there, and where it ends."""
    lsn, epoch, view, ts_ms, flags, *lengths, size = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    texts = []
    for length in lengths:
        texts.append(data[at : at + length])
        at += length
    kept = None if size == _NO_DATA else data[at : at + size]
    at += len(kept or b"")
    readers = None
    if flags & _HAS_READERS:
        readers, at = Readers.decode(data, at)
    op, path, to, kind, client = texts
    told = Update(
        lsn, epoch, view, ts_ms, op, path, to, kind, client, kept, bool(flags & _IS_DELETED),
        readers,
    )  # fmt: skip
    return told, at
