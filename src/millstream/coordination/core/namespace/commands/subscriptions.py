"""Checks and begins subscriptions: SUBSCRIBE, MARK, SUBACK.

    read  SUBSCRIBE path ... [MODE META|DATA] [TREE|CHILDREN] [FROM lsn] [DURABLE name]
          OK; MARK: not before that is logged; or why not
    log   MARK path ... [TREE|CHILDREN] [DURABLE name]      on the primary
    then  `subscribe`, which checks again and begins, or raises `Refused`

Invariants:
1. A subscription begins after its mark. So it can be resumed as long as its updates are kept.
2. One command subscribes to all of its paths or to none.
3. A subscription is resumed only at an LSN after which all updates are kept.

Elsewhere: marks (`marks`), messages (`audience`), the mode of the connection (`resp`).

Source: V2R2, "Subscribe to an element".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.audience import (
    SUBSCRIPTIONS_MAX,
    Audience,
    Subscriber,
)
from millstream.coordination.core.namespace.commands.command import Call, Command, Words
from millstream.coordination.core.namespace.paths import Path, joined, parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.state import Job, State
from millstream.coordination.core.namespace.state.updates import Place, Scope, Update, updates_of
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.values import OK, status
from millstream.vsr.core.versions import NEVER, parse_version

__all__ = [
    "FROM_THE_START",
    "MARK",
    "PATHS_MAX",
    "SUBSCRIBE_COMMANDS",
    "Begun",
    "SubscribeRequest",
    "announce",
    "request_of",
    "subscribe",
]  # fmt: skip

PATHS_MAX: Final = 128
"""Most paths of one command."""
NAME_BYTES_MAX: Final = 255
"""Most bytes of the name of a durable subscription."""
MARK: Final = status(b"MARK")


class SubscribeRequest(NamedTuple):
    """What SUBSCRIBE asks for; `from_lsn` None: from now on, or as far as `durable` was heard."""

    paths: tuple[Path, ...]
    scope: Scope = Scope.ELEMENT
    with_data: bool = False
    from_lsn: int | None = None
    durable: bytes = b""
    from_epoch: int | None = None
    """The epoch of the version that `from_lsn` is of, if the client gave one."""

    @property
    def mark(self) -> tuple[bytes, ...]:
        """The words to be logged if it needs a mark."""
        words = [b"MARK", *map(joined, self.paths)]
        if self.scope is not Scope.ELEMENT:
            words.append(self.scope.name.encode())
        if self.durable:
            words += (b"DURABLE", self.durable)
        return tuple(words)


class Begun(NamedTuple):
    """The epoch that a group is in: it began behind this LSN.

    A group that was restored, or forced to go on, is in a later epoch than the one it comes from:
    what that one did behind this LSN is another history.
    """

    epoch: int
    closed_lsn: int
    is_fork: bool = False
    """Whether it is the first one of a restored, or forced, group."""

    def is_other(self, epoch: int | None, lsn: int) -> bool:
        """Return whether an entry of this epoch and LSN may be none of the group's.

        `epoch` None: unknown; then what is behind a fork may be of the group before it.
        """
        if lsn == 0:
            return False
        if epoch is None:
            return self.is_fork and lsn > self.closed_lsn
        if generation(epoch) != generation(self.epoch):  # where it forked is known at first only
            return epoch > self.epoch or not self.is_fork or lsn > self.closed_lsn
        return epoch > self.epoch or (epoch == self.epoch) != (lsn > self.closed_lsn)

    def text_at(self, lsn: int) -> str:
        """Return from where it can be gone on: after a fork an LSN alone would not tell."""
        return f"{self.epoch}:0:{lsn}" if self.is_fork and lsn > self.closed_lsn else str(lsn)


FROM_THE_START: Final = Begun(0, 0)


def request_of(words: Words, *, is_mark: bool = False) -> SubscribeRequest:
    """Understand SUBSCRIBE, or MARK, which has fewer options.

    Raises:
        Refused: BADARG, BADPATH.
    """
    paths = [parse_path(words.take())]
    while words.peek().startswith(b"/"):
        paths.append(parse_path(words.take()))
    if len(paths) > PATHS_MAX:
        raise words.wrong(f"at most {PATHS_MAX} paths at once")
    request = SubscribeRequest(tuple(dict.fromkeys(paths)))
    while len(words):
        if words.has(b"TREE"):
            request = request._replace(scope=Scope.TREE)
        elif words.has(b"CHILDREN"):
            request = request._replace(scope=Scope.CHILDREN)
        elif words.has(b"DURABLE"):
            request = request._replace(durable=_name(words))
        elif not is_mark and words.has(b"MODE"):
            request = request._replace(with_data=_with_data(words))
        elif not is_mark and words.has(b"FROM"):
            version = parse_version(words.peek())
            known = None if version is None or not (version.epoch or version.view) else version
            request = request._replace(
                from_lsn=_lsn(words), from_epoch=None if known is None else known.epoch
            )
        else:
            raise words.wrong()
    return request


def _name(words: Words) -> bytes:
    name = words.take()
    if not 0 < len(name) <= NAME_BYTES_MAX:
        raise words.wrong(f"a name has 1 to {NAME_BYTES_MAX} bytes")
    return name


def _with_data(words: Words) -> bool:
    mode = words.take().upper()
    if mode not in (b"META", b"DATA"):
        raise words.wrong()
    return mode == b"DATA"


def _lsn(words: Words) -> int:
    version = parse_version(words.peek())
    if version is not None:
        words.take()
        return version.lsn
    return words.number()


def _places(job: Job, request: SubscribeRequest) -> list[Place]:
    places = []
    for path in request.paths:
        number = job.state.elements.at(path)
        job.state.guard(job, number, Want.READ)
        places.append(Place(number, request.scope))
    return places


def _lacks_mark(state: State, place: Place) -> bool:
    return state.marks.at(place) is None and state.marks.keeps(place.element)


# ---- commands


def _subscribe(words: Words) -> Call:
    request = request_of(words)

    def execute(job: Job) -> bytes:
        places = _places(job, request)
        if request.durable or any(_lacks_mark(job.state, place) for place in places):
            return MARK
        return OK

    needs_session = bool(request.durable)
    return Call(
        execute, request.paths, is_change=False, is_stale=True, needs_session=needs_session
    )


def _mark(words: Words) -> Call:
    request = request_of(words, is_mark=True)

    def execute(job: Job) -> bytes:
        marks, lsn = job.state.marks, job.version.lsn
        for place in _places(job, request):
            if marks.keeps(place.element):
                marks.begin(place, lsn)
        if request.durable:
            if not job.asker.session:
                raise Refused("ERR", "a durable subscription needs a session")
            marks.begin_hearing(job.asker.session, request.durable, lsn)
        return OK

    return Call(execute, request.paths, needs_session=bool(request.durable))


def _acknowledge(words: Words) -> Call:
    name, lsn = _name(words), _lsn(words)
    words.end()

    def execute(job: Job) -> bytes:
        if not job.asker.session:
            raise Refused("ERR", "a durable subscription needs a session")
        job.state.marks.hear(job.asker.session, name, min(lsn, job.version.lsn))
        return OK

    return Call(execute, (), needs_session=True)


_OPTIONS: Final = "[TREE|CHILDREN] [DURABLE name]"
SUBSCRIBE_COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    b"SUBSCRIBE": (
        "SUBSCRIBE path ... [MODE META|DATA] [TREE|CHILDREN] [FROM lsn] [DURABLE name]",
        _subscribe,
    ),
    b"MARK": (f"MARK path ... {_OPTIONS}", _mark),
    b"SUBACK": ("SUBACK name lsn", _acknowledge),
}
"""Name -> how it is written, and how it is understood."""


# ---- on this member


def subscribe(
    state: State,
    audience: Audience,
    subscriber: Subscriber,
    request: SubscribeRequest,
    lsn: int,
    confirm: Callable[[Path], None],
    begun: Begun = FROM_THE_START,
) -> None:
    """Begin what SUBSCRIBE asks for, now that its marks are there.

    `lsn`: the entry that the state is of. `begun`: the epoch it is in. `confirm` is called for
    each path before anything is said about it.

    Raises:
        Refused: HISTORY_LOST, with the LSN from which it can be had once the state was read: it
            asks for more than is kept, for what has not happened yet, or for another history;
            NOTPRIMARY, if this member has no mark yet; QUOTA; and what keeps it from being read.
    """
    audience.reach(lsn)
    job = Job(state, subscriber.asker, NEVER, 0, is_reading=True)
    from_lsn = _from(state, subscriber.asker, request)
    # How far a durable one was heard is in the state: it is of this history.
    is_other = request.from_lsn is not None and begun.is_other(
        request.from_epoch, request.from_lsn
    )
    if from_lsn is not None and (from_lsn > lsn or is_other):
        raise Refused("HISTORY_LOST", begun.text_at(lsn))
    found: list[tuple[Path, Place, list[Update]]] = []
    for path, place in zip(request.paths, _places(job, request), strict=True):
        epoch, kept_lsn = request.from_epoch, request.from_lsn
        if epoch is not None and kept_lsn and state.marks.contradict(place, epoch, kept_lsn):
            raise Refused("HISTORY_LOST", begun.text_at(lsn))
        found.append((path, place, _kept(state, audience, place, from_lsn, begun)))
    names = {joined(path) for path in request.paths}
    if len(names | subscriber.subscriptions.keys()) > SUBSCRIPTIONS_MAX:
        raise Refused("QUOTA", f"a connection has {SUBSCRIPTIONS_MAX} subscriptions at most")
    for path, place, kept in found:
        subscriber.end(joined(path))
        confirm(path)
        audience.add(
            subscriber, joined(path), place,
            with_data=request.with_data, after_lsn=from_lsn, kept=kept,
        )  # fmt: skip


def _from(state: State, asker: Asker, request: SubscribeRequest) -> int | None:
    if request.from_lsn is not None or not request.durable:
        return request.from_lsn
    heard = state.marks.heard(asker.session, request.durable)
    if heard is None:
        raise _behind()
    return heard


def _kept(
    state: State, audience: Audience, place: Place, from_lsn: int | None, begun: Begun
) -> list[Update]:
    if _lacks_mark(state, place):
        raise _behind()
    if from_lsn is None or from_lsn >= audience.lsn:
        return []
    kept = state.marks.kept(place, from_lsn)
    if kept is None:
        raise Refused("HISTORY_LOST", begun.text_at(audience.lsn))
    return kept


def _behind() -> Refused:
    return Refused("NOTPRIMARY", "this member does not have the mark yet")


def announce(state: State, audience: Audience, job: Job) -> None:
    """Tell those who listen on this member what an entry did."""
    for notice in job.notices:
        audience.on_notice(notice)
    if audience.is_empty:
        return
    audience.on_entry(job.version.lsn, updates_of(job, state.elements, audience.__contains__))
    audience.forget(
        Place(happened.line[0], scope)
        for happened in job.happened
        if happened.is_deleted
        for scope in Scope
    )
    changed = sorted({happened.line[0] for happened in job.happened if happened.op == b"attr"})
    if changed:
        audience.deny([Place(element, scope) for element in changed for scope in Scope])
