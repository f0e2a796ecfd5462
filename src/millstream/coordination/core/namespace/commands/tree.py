"""Commands for elements of all types: create, find, read, write, move, delete.

Namespaces are created and deleted elsewhere (`naming`): their names are unique over all groups.

Invariants:
1. A command calls `State.guard` before it reads data or changes anything.
2. CREATE of an existing element is not an error, and does not change the element.

Elsewhere: the tree (`elements`), the contents of elements (`data`, `kinds`).

Source: V2R2, "Namespace API".
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from itertools import islice
from typing import Final

from millstream.coordination.core.namespace.commands.command import Call, Command, Words
from millstream.coordination.core.namespace.commands.kinds import KINDS, Kind, checked_data
from millstream.coordination.core.namespace.paths import (
    NAME_BYTES_MAX,
    Path,
    joined,
    parse_path,
)
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.access_lists import READ
from millstream.coordination.core.namespace.state.elements import Element, Type
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.run import Happened
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import (
    NULL,
    OK,
    array,
    bulk,
    integer,
    mapping,
    status,
)
from millstream.vsr.core.versions import Version, parse_version

__all__ = [
    "EXISTS",
    "LIST_COUNT",
    "LIST_COUNT_MAX",
    "TREE",
    "TREE_BYTES_MAX",
    "TREE_COMMANDS",
    "delete_tree",
    "shown",
]

LIST_COUNT: Final = 1000
"""Names on a page, if a client does not say."""
LIST_COUNT_MAX: Final = 10_000
TREE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Data in the reply to TREE."""
ATTRIBUTE_NAME_BYTES_MAX: Final = 64
"""Behind `u.`"""
EXISTS: Final = status(b"EXISTS")
_SEQUENCE_DIGITS: Final = 10


# ---- CREATE, DELETE, MOVE


def _create(words: Words) -> Call:
    kind = KINDS.get(words.take().upper())
    if kind is None:
        raise words.wrong("there is no such type")
    flags = set()
    while (word := words.peek()) in (b"EPHEMERAL", b"SEQUENTIAL", b"PARENTS"):
        flags.add(word)
        words.take()
    options = kind.options(words)
    while (word := words.peek()) in (b"EPHEMERAL", b"SEQUENTIAL", b"PARENTS"):
        flags.add(word)
        words.take()
    path = parse_path(words.take())
    if len(path) < 2:
        raise Refused("BADPATH", "CREATENAMESPACE makes a namespace")
    values = tuple(checked_data(words, value) for value in words.rest())
    if len(values) > kind.values_max:
        raise words.wrong(f"at most {kind.values_max} values")

    def execute(job: Job) -> bytes:
        return _make(job, kind, path, flags, options, values)

    return Call(execute, (path,), needs_session=b"EPHEMERAL" in flags)


def _make(
    job: Job, kind: Kind, path: Path, flags: set[bytes], options: object, values: tuple[bytes, ...]
) -> bytes:
    elements = job.state.elements
    is_sequential, is_ephemeral = b"SEQUENTIAL" in flags, b"EPHEMERAL" in flags
    there = None if is_sequential else elements.find(path)
    if there is not None:
        found = elements.there(there).type
        if found is not kind.type:
            raise Refused("WRONGTYPE", f"{joined(path).decode()} is a {found.name}")
        return EXISTS
    if is_ephemeral and not job.asker.session:
        raise Refused("ERR", "an ephemeral element needs a session")
    parent = _parent(job, path, may_make=b"PARENTS" in flags)
    _guard_parent(job, parent)
    name = path[-1]
    sequence = None
    if is_sequential:
        name, sequence = _numbered(job, parent, name)
    one = Element(
        parent, name, kind.type, is_ephemeral, is_sequential,
        job.asker.session if is_ephemeral else 0, data_len=kind.size(values),
    )  # fmt: skip
    number = elements.create(job, parent, name, one, sequence)
    kind.fill(job, number, options, values)
    job.tell(b"create", number, values[0] if values and kind.type is Type.BINARY else None)
    return bulk(elements.path(number)) if is_sequential else OK


def _parent(job: Job, path: Path, *, may_make: bool) -> int:
    elements = job.state.elements
    parent = elements.find(path[:-1])
    if parent is not None:
        return parent
    there = elements.deepest(path[:-1])
    if not may_make or not there:
        raise Refused("ERROR_DOES_NOT_EXISTS", joined(path[:-1]).decode())
    parent = elements.at(there)
    for name in path[len(there) : -1]:
        _guard_parent(job, parent)
        parent = elements.create(job, parent, name, Element(parent, name, Type.BINARY))
        job.tell(b"create", parent, b"")
    return parent


def _guard_parent(job: Job, parent: int, want: Want = Want.WRITE) -> None:
    job.state.guard(job, parent, want)
    if job.state.elements.there(parent).is_ephemeral:
        raise Refused("EPHEMERAL_PARENT", "an ephemeral element has no children")


def _numbered(job: Job, parent: int, name: bytes) -> tuple[bytes, int]:
    """Return the name that a new element gets, and the parent's next number."""
    elements = job.state.elements
    number = elements.there(parent).sequence
    while True:
        made = name + b"%0*d" % (_SEQUENCE_DIGITS, number)
        number += 1
        if elements.child(parent, made) is None:
            break  # else somebody has made one of this name by hand
    if len(made) > NAME_BYTES_MAX:
        raise Refused("BADPATH", f"a name in a path has 1 to {NAME_BYTES_MAX} bytes")
    return made, number


def _delete(words: Words) -> Call:
    path = parse_path(words.take())
    is_recursive, version = False, None
    while len(words):
        if words.has(b"RECURSIVE"):
            is_recursive = True
        elif words.has(b"CAS"):
            version = taken_version(words)
        else:
            raise words.wrong()

    def execute(job: Job) -> bytes:
        number = job.state.elements.at(path)
        one = job.state.elements.there(number)
        if one.type is Type.ROOT:
            raise Refused("ISROOT", "DELETENAMESPACE deletes a namespace")
        job.state.guard(job, one.parent, Want.WRITE)
        job.state.guard(job, number, Want.TREE)
        if version is not None and version != one.version:
            raise Refused("CAS_MISMATCH", one.version.text.decode())
        return delete_tree(job, number, is_recursive=is_recursive)

    return Call(execute, (path,))


def delete_tree(job: Job, number: int, *, is_recursive: bool) -> bytes:
    """Delete an element, and what is below it if there may be something.

    Raises:
        Refused: NOTEMPTY, TOOBIG.
    """
    elements = job.state.elements
    if elements.there(number).nchildren and not is_recursive:
        raise Refused("NOTEMPTY", elements.path(number).decode())
    for each in elements.tree(number, job):
        elements.delete(job, each)
    return OK


def _move(words: Words) -> Call:
    source, target = parse_path(words.take()), parse_path(words.take())
    is_forced = words.has(b"FORCE_MOVE")
    words.end()
    if source[0] != target[0]:
        raise Refused("CROSS_NAMESPACE", "an element cannot be moved to another namespace")
    if len(source) < 2 or len(target) < 2:
        raise Refused("ISROOT", "a namespace cannot be moved")

    def execute(job: Job) -> bytes:
        return _moved(job, source, target, is_forced=is_forced)

    return Call(execute, (source, target))


def _moved(job: Job, source: Path, target: Path, *, is_forced: bool) -> bytes:
    elements, state = job.state.elements, job.state
    number = elements.at(source)
    one = elements.there(number)
    state.guard(job, one.parent, Want.WRITE)
    state.guard(job, number, Want.TREE)
    if source == target:
        return OK
    if target[: len(source)] == source:
        raise Refused("LOOP", "the target is below the source")
    parent = elements.at(target[:-1])
    _guard_parent(job, parent, Want.PLACE)
    there = elements.find(target)
    if there is not None:
        if not is_forced:
            raise Refused("NAME_CONFLICT", joined(target).decode())
        if source[: len(target)] == target:
            raise Refused("LOOP", "the source is below the target")
        state.guard(job, there, Want.TREE)
        delete_tree(job, there, is_recursive=True)
    if len(target) > len(source):
        elements.refuse_too_deep(number, len(target))
    line, path = elements.place(number)
    before = elements.readers(number)
    elements.move(job, number, parent, target[-1])
    to_line, to = elements.place(number)
    job.happened.append(Happened(
        b"move", path, one.type.text, line, to=to, to_line=to_line,
        readers=before.narrowed(elements.readers(number)),
    ))  # fmt: skip
    return OK


# ---- GET, PUT


def _get(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.ends_with(b"STALEREAD")
    with_version = words.has(b"CAS")
    with_attributes = not with_version and words.has(b"ATTR")
    with_data, with_children = True, False
    while with_attributes and len(words):
        if words.has(b"NODATA"):
            with_data = False
        elif words.has(b"CHILDREN"):
            with_children = True
        else:
            raise words.wrong()
    words.end()

    def execute(job: Job) -> bytes:
        number = job.state.elements.at(path)
        is_look = with_attributes and not with_data
        job.state.guard(job, number, Want.LOOK if is_look else Want.READ)
        if with_attributes:
            return _attributes(job, number, with_data=with_data, with_children=with_children)
        natural = shown(job, number)
        if not with_version:
            return natural
        return array((bulk(job.state.elements.there(number).version.text), natural))

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


def shown(job: Job, number: int) -> bytes:
    """Return an element in the natural form of its type."""
    kind = job.state.elements.there(number).type
    if kind is Type.ROOT:
        return bulk(job.state.data.of(number))
    return KINDS[kind.text].show(job, number)


def _attributes(job: Job, number: int, *, with_data: bool, with_children: bool) -> bytes:
    one = job.state.elements.there(number)
    flags = [b"EPHEMERAL"] * one.is_ephemeral + [b"SEQUENTIAL"] * one.is_sequential
    owner = bulk(one.created_client) if one.is_ephemeral else NULL
    pairs = [
        (b"type", bulk(one.type.text)),
        (b"id", integer(number)),
        (b"flags", array([bulk(flag) for flag in flags])),
        (b"created_version", bulk(one.created_version.text)),
        (b"version", bulk(one.version.text)),
        (b"created_ts", integer(one.created_ts)),
        (b"ts", integer(one.ts)),
        (b"created_cts", integer(one.created_cts)),
        (b"cts", integer(one.cts)),
        (b"created_client", bulk(one.created_client)),
        (b"client", bulk(one.client)),
        (b"owner_session", owner),
        (b"nchildren", integer(one.nchildren)),
        (b"child_version", bulk(one.child_version.text)),
        (b"data_len", integer(one.data_len)),
    ]
    for family in job.state.families:
        pairs += family.attributes(job, number)
    if with_children:
        pairs.append((b"children", _page(job, number, None, LIST_COUNT)))
    if with_data:
        pairs.append((b"data", shown(job, number)))
    return mapping(pairs)


def _put(words: Words) -> Call:
    path = parse_path(words.take())
    data = words.take()
    if data.upper() == b"ATTR" and words.peek().startswith(b"U."):
        return _put_attributes(path, words)
    checked_data(words, data)
    version = token = None
    while len(words):
        if words.has(b"CAS"):
            version = taken_version(words)
        elif words.has(b"IFLOCK"):
            token = taken_version(words)
        else:
            raise words.wrong()

    def execute(job: Job) -> bytes:
        number = job.state.elements.at(path)
        job.state.guard(job, number, Want.WRITE)
        one = job.state.elements.there(number)
        if one.type is Type.ROOT:
            raise Refused("ISROOT", "the data of a namespace cannot be changed")
        if one.type is not Type.BINARY:
            raise Refused("WRONGTYPE", one.type.name)
        if token is not None:
            job.state.check_token(token)
        if version is not None and version != one.version:
            raise Refused("CAS_MISMATCH", one.version.text.decode())
        job.state.data.put(job, number, data)
        job.tell(b"put", number, data)
        return OK

    return Call(execute, (path,))


def _put_attributes(path: Path, words: Words) -> Call:
    rest = words.rest()
    pairs = list(zip(rest[::2], rest[1::2], strict=False))
    if len(rest) % 2:
        raise words.wrong()
    for name, _ in pairs:
        if not name.startswith(b"u.") or not 2 < len(name) <= 2 + ATTRIBUTE_NAME_BYTES_MAX:
            raise words.wrong(f"u. and 1 to {ATTRIBUTE_NAME_BYTES_MAX} bytes name an attribute")

    def execute(job: Job) -> bytes:
        number = job.state.elements.at(path)
        job.state.guard(job, number, Want.WRITE)
        job.state.data.put_attributes(job, number, pairs)
        job.tell(b"attr", number)
        return OK

    return Call(execute, (path,))


def taken_version(words: Words) -> Version:
    """Return the next word as a version.

    Raises:
        Refused: BADARG.
    """
    version = parse_version(words.take())
    if version is None:
        raise words.wrong("a version is epoch:view:lsn")
    return version


# ---- LIST, LOOKUP


def list_names(words: Words) -> Call:
    """LIST, if what follows is a path."""
    text = words.take()
    path = () if text == b"/" else parse_path(text.removesuffix(b"/"))
    is_stale = words.ends_with(b"STALEREAD")
    after, count = None, LIST_COUNT
    while len(words):
        if words.has(b"TOKEN"):
            after = _name_in(words.take())
        elif words.has(b"COUNT"):
            count = words.number(1, LIST_COUNT_MAX)
        else:
            raise words.wrong()

    def execute(job: Job) -> bytes:
        if not path:
            return _page(job, 0, after, count)
        number = job.state.elements.at(path)
        job.state.guard(job, number, Want.READ)
        return _page(job, number, after, count)

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


def _page(job: Job, number: int, after: bytes | None, count: int) -> bytes:
    found = job.state.elements.children(number, after)
    if not number:  # the namespaces of others are nobody's business
        permissions = job.state.permissions
        found = (one for one in found if permissions.allow(job.asker, one[1], READ))
    names = [name for name, _ in islice(found, count + 1)]
    is_last = len(names) <= count
    names = names[:count]
    token = NULL if is_last else bulk(urlsafe_b64encode(names[-1]))
    return array((token, array([bulk(name) for name in names])))


def _name_in(token: bytes) -> bytes:
    try:
        name = urlsafe_b64decode(token)
    except ValueError:
        name = b""
    if not name or urlsafe_b64encode(name) != token:
        raise Refused("BADTOKEN", "this is not a cursor of LIST")
    return name


def _lookup(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.ends_with(b"STALEREAD")
    words.end()

    def execute(job: Job) -> bytes:
        there = job.state.elements.deepest(path)
        if there == path:
            return OK
        return array((bulk(b"NOTFOUND"), bulk(joined(there) if there else b"")))

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


# ---- TREE


def _tree(words: Words) -> Call:
    path = parse_path(words.take())
    is_stale = words.ends_with(b"STALEREAD")
    words.end()

    def execute(job: Job) -> bytes:
        elements = job.state.elements
        number = elements.at(path)
        job.state.guard(job, number, Want.READ)
        rows, size = [], 0
        for each in sorted(elements.tree(number, job), key=elements.path):
            one = elements.there(each)
            data = NULL
            if one.type in _PLAIN and _is_readable(job, each):
                size += one.data_len
                if size > TREE_BYTES_MAX:
                    raise Refused("TOOBIG", f"TREE answers with {TREE_BYTES_MAX} bytes at most")
                data = shown(job, each)
            rows.append(array((bulk(elements.path(each)), bulk(one.version.text), data)))
        return array(rows)

    return Call(execute, (path,), is_change=False, is_stale=is_stale)


def _is_readable(job: Job, number: int) -> bool:
    try:
        job.state.guard(job, number, Want.READ)
    except Refused:
        return False
    return True


_PLAIN: Final = (Type.BINARY, Type.COUNTER)
TREE: Final[tuple[str, Command]] = ("TREE path [STALEREAD]", _tree)
"""It is not among `TREE_COMMANDS`: a transaction, which is logged, never has it."""
TREE_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"CREATE": (
        "CREATE BINARY|LIST|SET|QUEUE|COUNTER [EPHEMERAL] [SEQUENTIAL] [PARENTS] [UNSIGNED] "
        "[BIT bits] [WRAP] path [data ...]",
        _create,
    ),
    b"DELETE": ("DELETE path [RECURSIVE] [CAS version]", _delete),
    b"MOVE": ("MOVE source target [FORCE_MOVE]", _move),
    b"GET": ("GET path [CAS | ATTR [NODATA] [CHILDREN]] [STALEREAD]", _get),
    b"PUT": (
        "PUT path data [CAS version] [IFLOCK token], or PUT path ATTR u.name value ...",
        _put,
    ),
    b"LIST": ("LIST path [TOKEN token] [COUNT number] [STALEREAD]", list_names),
    b"LOOKUP": ("LOOKUP path [STALEREAD]", _lookup),
}
"""Name -> how it is written, and how it is understood."""
