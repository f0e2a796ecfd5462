"""One batch of changes: what the target lacks is fetched and written.

Invariants:
1. A document counts as accepted only if its row names all leaves and the target has them, or newer
   ones below them.
2. What the target refuses for good is a failure of that document; what may go well later is tried
   again, and then is an error of the batch. If a whole request fails, or a refusal does not say of
   what, smaller requests find the document whose fault it is. A document that fails alone, at a
   side that answers other requests, is a failure of that document. If more than `SUSPECTS_MAX`
   failed so and no such request went well, the side is at fault: it is an error of the batch.
3. What the source names and then does not have is told apart: its history may have changed.
4. At most `FETCH_DOCUMENTS_MAX` documents, and about `WRITE_BYTES_MAX` bytes to write, are held;
   documents with attachments pass from peer to peer.

Elsewhere: how far a log may move after it (`tracking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millstream.errors import MillstreamError, UnavailableError
from millstream.replication.core.asking import (
    OF_A_SIDE,
    PASSING,
    STUMBLED,
    TOO_LARGE,
    Ask,
    Copy,
    Diff,
    Difference,
    Document,
    Failure,
    Fetch,
    Fetched,
    Pause,
    ReadInfo,
    Row,
    Side,
    Wanted,
    Write,
)
from millstream.replication.core.logs import Statistics
from millstream.replication.core.reading import UNREADABLE
from millstream.replication.core.tasks import ATTEMPTS_MAX, RETRY_MIN_MS, Steps, asked

__all__ = [
    "FETCH_DOCUMENTS_MAX", "MISSING", "OF_A_DOCUMENT", "SUSPECTS_MAX", "WRITE_BYTES_MAX",
    "Batch", "Done",
]  # fmt: skip

FETCH_DOCUMENTS_MAX: Final = 100
"""Documents asked for in one request."""
WRITE_BYTES_MAX: Final = 512 * 1024
"""Documents sent in one request, unless a single one is larger."""
OF_A_DOCUMENT: Final = frozenset((
    TOO_LARGE, "attachment_too_large", "bad_json", "bad_request", "doc_validation",
    "document_too_large", "illegal_docid", "query_parse_error",
))  # fmt: skip
"""Codes of errors of a whole request that may be the fault of one document in it."""
MISSING: Final = "missing"
_MISSING_STUB: Final = "missing_stub"
SUSPECTS_MAX: Final = 10
"""Documents of a batch that may fail alone before any request like theirs went well."""
ATTEMPTS_OF_SUSPECTS_MAX: Final = 2
"""Attempts of a smaller request. The whole one was tried `ATTEMPTS_MAX` times before."""


class Done(NamedTuple):
    """What came of a batch."""

    accepted: frozenset[str]
    """Ids of documents that the target has."""
    failures: tuple[Failure, ...]
    missing: frozenset[str]
    """Ids of documents of which the source did not have what it had named."""
    statistics: Statistics
    leaves: Mapping[str, tuple[str, ...]] = {}
    """The leaves of documents that failed or are missing, by id, except where their row may not
    name all."""

    @property
    def refused(self) -> frozenset[str]:
        """Ids of documents that the target does not have."""
        return self.missing.union(each.name for each in self.failures)

    def plus(self, other: Done) -> Done:
        """Return what came of both."""
        return Done(
            self.accepted | other.accepted, self.failures + other.failures,
            self.missing | other.missing, self.statistics.plus(other.statistics),
            {**self.leaves, **other.leaves},
        )  # fmt: skip


class Batch:
    """One batch under way.

    Args:
        rows: changes, each document once.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._failures: list[Failure] = []
        self._missing: set[str] = set()
        self._read = self._written = self._suspects = 0
        self._went_well: set[type] = set()

    def steps(self) -> Steps[Done]:
        """Do it.

        Raises:
            MillstreamError: a side does not answer, or not as it should.
        """
        revs = {row.name: row.revs for row in self._rows}
        self._failures += [
            Failure(row.name, "", UNREADABLE, row.reason) for row in self._rows if row.reason
        ]
        found: Mapping[str, Difference] = {}
        if revs:
            found = yield from self._differences(revs)
        wanted = [
            Wanted(name, each.missing, each.possible_ancestors)
            for name, each in found.items()
            if each.missing and name in revs
        ]
        for at in range(0, len(wanted), FETCH_DOCUMENTS_MAX):
            yield from self._move(wanted[at : at + FETCH_DOCUMENTS_MAX])
        return self._done(revs, wanted)

    def _done(self, revs: Mapping[str, tuple[str, ...]], wanted: Sequence[Wanted]) -> Done:
        failed = {failure.name for failure in self._failures}
        statistics = Statistics(
            missing_checked=sum(map(len, revs.values())),
            missing_found=sum(len(each.revs) for each in wanted),
            docs_read=self._read,
            docs_written=self._written,
            doc_write_failures=len(self._failures),
            rows_read=len(revs),
        )
        assert failed | self._missing <= revs.keys() | {row.name for row in self._rows}, (
            "unknown ids"
        )
        accepted = frozenset(revs.keys() - failed - self._missing)
        leaves = {
            row.name: row.revs for row in self._rows if row.name not in accepted and not row.reason
        }
        return Done(accepted, tuple(self._failures), frozenset(self._missing), statistics, leaves)

    def _differences(
        self, revs: Mapping[str, tuple[str, ...]], attempts: int = ATTEMPTS_MAX
    ) -> Steps[Mapping[str, Difference]]:
        """Return what the target lacks; what it cannot judge is a failure."""
        try:
            found: Mapping[str, Difference] = yield from asked("target", Diff(revs), attempts)
        except MillstreamError as error:
            yield from self._raise_unless_of_a_document(error, "target")
            names = list(revs)
            if len(names) == 1:
                [name] = names
                rev = revs[name][0] if revs[name] else ""
                self._failures.append(self._suspected(Diff, error, name, rev))
                return {}
            middle = len(names) // 2
            found = {}
            for part in (names[:middle], names[middle:]):
                some = yield from self._differences(
                    {name: revs[name] for name in part}, ATTEMPTS_OF_SUSPECTS_MAX
                )
                found = {**found, **some}
        else:
            self._went_well.add(Diff)
        return found

    def _move(self, wanted: Sequence[Wanted], attempts: int = ATTEMPTS_MAX) -> Steps[None]:
        """Bring some documents over; fewer at a time where a request for them fails."""
        try:
            fetched: Fetched = yield from asked("source", Fetch(tuple(wanted)), attempts)
        except MillstreamError as error:
            yield from self._raise_unless_of_a_document(error, "source")
            if len(wanted) == 1:
                yield from self._copy(wanted[0], Fetch, ATTEMPTS_OF_SUSPECTS_MAX)
                return
            middle = len(wanted) // 2
            yield from self._move(wanted[:middle], ATTEMPTS_OF_SUSPECTS_MAX)
            yield from self._move(wanted[middle:], ATTEMPTS_OF_SUSPECTS_MAX)
            return
        self._went_well.add(Fetch)
        streamed = {each.name for each in fetched.documents if each.has_attachments}
        self._missing |= {name for name, _ in fetched.missing if name not in streamed}
        self._missing |= _unanswered(wanted, fetched)
        plain = [each for each in fetched.documents if each.name not in streamed]
        self._read += len(plain)
        for group in _by_size(plain):
            yield from self._write(group)
        for each in wanted:
            if each.name in streamed:
                yield from self._copy(each, Copy)

    def _raise_unless_of_a_document(self, error: MillstreamError, *sides: Side) -> Steps[None]:
        """Raise an error of a whole request that no document in it can be at fault for.

        A side that does not say whose fault it is is asked for something else.
        """
        if error.code in OF_A_DOCUMENT:
            return
        if error.code in OF_A_SIDE:
            raise error
        for side in sides:
            try:
                yield Ask(side, ReadInfo())
            except MillstreamError:
                raise error from None

    def _suspected(self, kind: type, error: MillstreamError, name: str, rev: str = "") -> Failure:
        """Return the failure of a document whose request failed, though it was alone in it."""
        if error.code not in OF_A_DOCUMENT and kind not in self._went_well:
            self._suspects += 1
            if self._suspects > SUSPECTS_MAX:
                raise error
        return Failure(name, rev, error.code, str(error))

    def _copy(self, wanted: Wanted, kind: type, attempts: int = ATTEMPTS_MAX) -> Steps[None]:
        """Have a document with its attachments pass.

        If it does not, it is a suspect unless a request of this kind went well: a `Fetch` where
        one failed for this document before.
        """
        failures: Sequence[Failure]
        try:
            failures = yield from self._copied(wanted, attempts)
            self._went_well.add(kind)
        except MillstreamError as error:
            if error.code == "not_found":
                failures = [Failure(wanted.name, "", MISSING, str(error))]
            else:
                yield from self._raise_unless_of_a_document(error, "source", "target")
                failures = [self._suspected(kind, error, wanted.name)]
        self._read += len(wanted.revs)
        self._written += max(0, len(wanted.revs) - len(failures))
        self._missing |= {each.name for each in failures if each.error == MISSING}
        self._failures += [each for each in failures if each.error != MISSING]

    def _copied(self, wanted: Wanted, attempts: int) -> Steps[Sequence[Failure]]:
        wait_ms = RETRY_MIN_MS
        for _ in range(ATTEMPTS_MAX):
            failures: Sequence[Failure] = yield from asked("source", Copy(wanted), attempts)
            if wanted.known and any(each.error == _MISSING_STUB for each in failures):
                wanted = wanted._replace(known=())  # the target has not what it should have
                continue
            later = [each for each in failures if each.error in PASSING]
            if not later:
                return failures
            yield Pause(wait_ms)
            wait_ms *= 2
        raise _later(later[0])

    def _write(self, documents: Sequence[Document], attempts: int = ATTEMPTS_MAX) -> Steps[None]:
        names = {each.name for each in documents}
        failures: Sequence[Failure]
        try:
            failures = yield from self._written_of(documents, attempts)
            self._went_well.add(Write)
        except MillstreamError as error:
            yield from self._raise_unless_of_a_document(error, "target")
            failures = [Failure("", "", error.code, str(error))]
            if len(documents) == 1:
                failures = [self._suspected(Write, error, documents[0].name, documents[0].rev)]
            attempts = ATTEMPTS_OF_SUSPECTS_MAX
        if len(documents) == 1:
            failures = [each._replace(name=documents[0].name) for each in failures[:1]]
        elif not all(each.name in names for each in failures):
            middle = len(documents) // 2
            yield from self._write(documents[:middle], attempts)
            yield from self._write(documents[middle:], attempts)
            return
        self._failures += failures
        self._written += max(0, len(documents) - len(failures))

    def _written_of(
        self, documents: Sequence[Document], attempts: int
    ) -> Steps[Sequence[Failure]]:
        """Write, and again what failed but may go well later."""
        final: dict[tuple[str, str], Failure] = {}
        count, wait_ms = len(documents), RETRY_MIN_MS
        for _ in range(attempts):
            failures: Sequence[Failure] = yield from asked(
                "target", Write(tuple(documents)), attempts
            )
            final |= {each[:2]: each for each in failures if each.error not in PASSING}
            later = [each for each in failures if each.error in PASSING]
            if not later:
                return list(final.values())
            again = {each.name for each in later}
            some = [each for each in documents if each.name in again]
            if again <= {each.name for each in some}:
                documents = some
            yield Pause(wait_ms)
            wait_ms *= 2
        if len(later) < count and all(each.error in STUMBLED for each in later):
            return [*final.values(), *later]  # it takes others: these are what it stumbles over
        raise _later(later[0])


def _later(failure: Failure) -> UnavailableError:
    return UnavailableError(
        f"the target does not take {failure.name!r} now: {failure.reason}", code=failure.error
    )


def _unanswered(wanted: Sequence[Wanted], fetched: Fetched) -> set[str]:
    told = {each.name for each in fetched.documents} | {name for name, _ in fetched.missing}
    return {each.name for each in wanted} - told


def _by_size(documents: Sequence[Document]) -> list[list[Document]]:
    groups: list[list[Document]] = []
    size = WRITE_BYTES_MAX
    for document in documents:
        if size + len(document.body) > WRITE_BYTES_MAX:
            groups.append([])
            size = 0
        groups[-1].append(document)
        size += len(document.body)
    return groups
