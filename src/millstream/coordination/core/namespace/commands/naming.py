"""Commands that keep names of namespaces unique over all groups.

CREATENAMESPACE and DELETENAMESPACE are executed by the system group. If the root is in the system
group, one entry does everything. Otherwise the entry only begins it. Its reply is RESERVED or
DELETING with the ids, or AWAITED if another request for the name is not settled. Further steps are
commands: NAMESPACE and the step.

Steps of the system group: RESERVE, CONFIRM, DELETE, KEEP, FREE. They return the record of the name
after the step: `[status, gid, id, deletion]`, or nothing. Steps of a target group: CREATE, UNDO,
DROP. They return CREATED, GONE, DELETED, or the reason why the root stays: NOTEMPTY, LOCKED,
TOOBIG.

Invariants:
1. The steps are for administrators: nodes send them to groups on behalf of clients.

Elsewhere: the purpose of the steps (`names`), carrying them out (`settling`).

Source: V2R2, "CREATENAMESPACE", uniqueness within an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millstream.coordination.core.namespace import names
from millstream.coordination.core.namespace.commands.command import (
    Call,
    Command,
    Words,
    sub_commands,
)
from millstream.coordination.core.namespace.commands.kinds import checked_data
from millstream.coordination.core.namespace.commands.tree import EXISTS, delete_tree, taken_version
from millstream.coordination.core.namespace.names import (
    NAMES_MAX,
    OWN,
    Answer,
    Do,
    Name,
    NameStatus,
    Step,
)
from millstream.coordination.core.namespace.paths import Path, joined, parse_root
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.access_lists import NAME_BYTES_MAX
from millstream.coordination.core.namespace.state.elements import Element, Type
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import NULL, OK, array, bulk, integer, status
from millstream.vsr.core.versions import Version

__all__ = [
    "AWAITED",
    "DELETING",
    "GID_MAX",
    "NAMESPACE",
    "NAMING_COMMANDS",
    "RESERVED",
    "answer_in",
    "words_of",
]

GID_MAX: Final = (1 << 63) - 1
RESERVED: Final = b"RESERVED"
"""The first word of a reply: by this request; group, id follow."""
DELETING: Final = b"DELETING"
"""The same: by this request or an earlier one. Group, id, id of the deletion, 1 if forced, and 1
if it overrides locks follow."""
AWAITED: Final = b"AWAITED"
"""The same: by an earlier request that is not settled. Group and id follow."""
_TOP: Final = Element(0, b"", Type.ROOT)


def words_of(step: Step) -> tuple[bytes, ...]:
    """Return the command for a step; not of CREATE, which says more."""
    root, words = b"/" + step.root, [step.id.text]
    if step.do in (Do.DROP, Do.KEEP):
        words.append(step.deletion.text)
    if step.do is Do.DROP:
        words += [b"FORCE"] * step.is_forced + [b"LOCKED"] * step.passes_locks
    return (b"NAMESPACE", step.do.value, root, *words)


def answer_in(reply: bytes) -> Answer | None:
    """Return what a target answered; None if that is no answer, but an error."""
    try:
        return Answer(reply[1:])
    except ValueError:
        return None


class _Roots:
    """The roots of this group, for one step."""

    def __init__(self, job: Job, owner: bytes = b"", data: bytes = b"") -> None:
        self._job, self._owner, self._data = job, owner, data
        registry = job.state.registry
        self.refusal_of, self.refuse = registry.refusal_of, registry.refuse

    def id_of(self, root: bytes) -> Version | None:
        number = self._job.state.elements.find((root,))
        return None if number is None else self._job.state.registry.id_of(number)

    def create(self, root: bytes, reservation: Version) -> None:
        job, state = self._job, self._job.state
        number = state.elements.create(job, 0, root, _TOP)
        state.registry.set_id(number, reservation)
        acl = state.permissions.of(number)
        state.permissions.put(number, acl._replace(owner=self._owner))
        if self._data:
            state.data.put(job, number, self._data)
        job.tell(b"create", number, self._data)

    def remove(self, root: bytes, is_forced: bool) -> Answer:
        job, state = self._job, self._job.state
        number = state.elements.at((root,))
        if state.elements.there(number).nchildren and not is_forced:
            return Answer.NOTEMPTY
        try:
            state.guard(job, number, Want.TREE)
            tree = state.elements.tree(number, job)
        except Refused as refused:
            return Answer.TOOBIG if refused.code == "TOOBIG" else Answer.LOCKED
        for each in tree:
            state.elements.delete(job, each)
        return Answer.GONE


# ---- commands of clients


def _create_namespace(words: Words) -> Call:
    path, data, gid = parse_root(words.take()), b"", OWN
    if len(words) in (1, 3):
        data = checked_data(words, words.take())
    if words.has(b"GROUP"):
        gid = words.number(0, GID_MAX)
    words.end()

    def execute(job: Job) -> bytes:
        job.state.permissions.check_admin(job, joined(path))
        table = job.state.registry.names
        known = table.get(path[0])
        if known is not None:
            is_settled = known.status is not NameStatus.RESERVED
            return EXISTS if is_settled else _begun(AWAITED, known)
        if job.state.elements.find(path) is not None:
            return EXISTS
        if len(table) >= NAMES_MAX:
            raise Refused("QUOTA", f"there are {NAMES_MAX} namespaces; delete some")
        if gid != OWN:
            return _begun(RESERVED, names.reserve(table, path[0], gid, job.version))
        table.put(path[0], Name(OWN, job.version, NameStatus.CONFIRMED))
        return _create_own(job, path, data)

    return Call(execute, ())


def _create_own(job: Job, path: Path, data: bytes) -> bytes:
    number = job.state.elements.create(job, 0, path[0], _TOP)
    if data:
        job.state.data.put(job, number, data)
    job.tell(b"create", number, data)
    return OK


def _delete_namespace(words: Words) -> Call:
    path = parse_root(words.take())
    is_forced = words.has(b"FORCE")
    words.end()

    def execute(job: Job) -> bytes:
        table = job.state.registry.names
        known = table.get(path[0])
        if known is None or known.gid == OWN:
            number = job.state.elements.at(path)
            job.state.guard(job, number, Want.TREE)
            table.delete(path[0])
            return delete_tree(job, number, is_recursive=is_forced)
        job.state.permissions.check_admin(job, joined(path))
        if known.status is NameStatus.RESERVED:
            return _begun(AWAITED, known)
        return _begun(
            DELETING,
            names.begin_deletion(table, path[0], is_forced, job.version, job.passes_locks)
            or known,
        )

    return Call(execute, ())


def _begun(word: bytes, name: Name) -> bytes:
    """Return what is said of a namespace of another group; a node goes on with it."""
    words = [word, b"%d" % name.gid, name.id.text]
    if word == DELETING:
        words += [name.deletion.text, b"%d" % name.is_forced, b"%d" % name.passes_locks]
    return status(b" ".join(words))


NAMING_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"CREATENAMESPACE": ("CREATENAMESPACE root [data] [GROUP group]", _create_namespace),
    b"DELETENAMESPACE": ("DELETENAMESPACE root [FORCE]", _delete_namespace),
}
"""How clients write them; their key is empty: they are the system group's, whatever the name."""


# ---- steps


def _step(path: Path, execute: Callable[[Job], bytes]) -> Call:
    def checked(job: Job) -> bytes:
        job.state.permissions.check_admin(job, b"NAMESPACE")
        return execute(job)

    return Call(checked, (path,))


def _shown(name: Name | None) -> bytes:
    if name is None:
        return NULL
    return array(
        (
            bulk(name.status.value), integer(name.gid), bulk(name.id.text),
            bulk(name.deletion.text),
        )
    )  # fmt: skip


def _reserve(words: Words) -> Call:
    path, gid = parse_root(words.take()), words.number(0, GID_MAX)
    words.end()
    return _step(
        path,
        lambda job: _shown(names.reserve(job.state.registry.names, path[0], gid, job.version)),
    )


def _begin_deletion(words: Words) -> Call:
    path, is_forced = parse_root(words.take()), words.has(b"FORCE")
    passes_locks = words.has(b"LOCKED")
    words.end()

    def execute(job: Job) -> bytes:
        table = job.state.registry.names
        begun = names.begin_deletion(table, path[0], is_forced, job.version, passes_locks)
        return _shown(begun)

    return _step(path, execute)


def _confirm(words: Words) -> Call:
    path, reservation = _root_and_id(words)
    words.end()
    return _step(
        path,
        lambda job: _shown(names.confirm(job.state.registry.names, path[0], reservation)),
    )


def _free(words: Words) -> Call:
    path, reservation = _root_and_id(words)
    words.end()
    return _step(
        path, lambda job: _shown(names.free(job.state.registry.names, path[0], reservation))
    )


def _keep(words: Words) -> Call:
    path, reservation = _root_and_id(words)
    deletion = taken_version(words)
    words.end()

    def execute(job: Job) -> bytes:
        table = job.state.registry.names
        return _shown(names.keep(table, path[0], reservation, deletion))

    return _step(path, execute)


def _root_and_id(words: Words) -> tuple[Path, Version]:
    return parse_root(words.take()), taken_version(words)


def _create(words: Words) -> Call:
    path, reservation = _root_and_id(words)
    owner = words.take()
    data = checked_data(words, words.take()) if len(words) else b""
    words.end()
    if len(owner) > NAME_BYTES_MAX:
        raise words.wrong(f"a name has at most {NAME_BYTES_MAX} bytes")

    def execute(job: Job) -> bytes:
        answer = names.create(_Roots(job, owner, data), path[0], reservation)
        return status(answer.value)

    return _step(path, execute)


def _undo(words: Words) -> Call:
    path, reservation = _root_and_id(words)
    words.end()
    return _step(path, lambda job: status(names.undo(_Roots(job), path[0], reservation).value))


def _drop(words: Words) -> Call:
    path, reservation = _root_and_id(words)
    deletion = taken_version(words)
    is_forced, passes_locks = words.has(b"FORCE"), words.has(b"LOCKED")
    words.end()

    def execute(job: Job) -> bytes:
        job.passes_locks = passes_locks
        answer = names.drop(_Roots(job), path[0], reservation, deletion, is_forced)
        return status(answer.value)

    return _step(path, execute)


NAMESPACE: Final[tuple[str, Command]] = (
    "NAMESPACE step root ...",
    sub_commands(
        {
            b"RESERVE": ("NAMESPACE RESERVE root gid", _reserve),
            b"CONFIRM": ("NAMESPACE CONFIRM root id", _confirm),
            b"DELETE": ("NAMESPACE DELETE root [FORCE] [LOCKED]", _begin_deletion),
            b"KEEP": ("NAMESPACE KEEP root id deletion", _keep),
            b"FREE": ("NAMESPACE FREE root id", _free),
            b"CREATE": ("NAMESPACE CREATE root id owner [data]", _create),
            b"UNDO": ("NAMESPACE UNDO root id", _undo),
            b"DROP": ("NAMESPACE DROP root id deletion [FORCE] [LOCKED]", _drop),
        }
    ),
)
"""How NAMESPACE is written, and how it is understood."""
