"""Reading the changes of a source that may not be able to answer for all of them.

Invariants:
1. A page that fails is asked for again, with half as many changes and after a longer wait each
   time. After a page that went well the next one is twice as large, up to the largest one; after
   `PATIENCE_MAX` such pages at most, where larger ones failed before.
2. A change that fails alone is asked for with its winning revision only. It is a row with a reason
   then. A filter that looks into documents may pass a document for another revision, so that this
   could skip one: the reader stops there.
3. What cannot be read is an error that names the sequence. Nothing is skipped.

Elsewhere: what becomes of rows (`batches`), answers of sources (`http_forms`).
"""

from __future__ import annotations

from typing import Final

from msgspec.json import encode

from millstream.errors import MillstreamError, RemoteProtocolError, UnavailableError
from millstream.model.pauses import Pauses
from millstream.replication.core.asking import (
    OF_A_SIDE,
    TOO_LARGE,
    Ask,
    Changes,
    Page,
    Pause,
    ReadInfo,
)
from millstream.replication.core.tasks import ATTEMPTS_MAX, RETRY_MIN_MS, Steps, may_go_well

__all__ = ["UNREADABLE", "UNREADABLE_MAX", "WAIT_MIN_MS", "WAIT_MS", "Reader"]

WAIT_MS: Final = 25_000
"""How long a source is asked to wait for a change."""
WAIT_MIN_MS: Final = 1_000
"""Shortest wait for a change, after longer waits failed: a proxy may end them."""
RETRY_MAX_MS: Final = 4_000
"""Largest pause between two attempts."""
PATIENCE_MAX: Final = 64
"""Most pages that have to succeed before a size is tried again that failed before."""
UNREADABLE: Final = "change_unreadable"
"""Code of an error that names the sequence after which a change cannot be read."""
UNREADABLE_MAX: Final = 10
"""Most changes in a row that may fail alone. If more do, the source is at fault."""


class Reader:
    """Reads pages, one after the other.

    Args:
        limit: largest number of changes of a page.
    """

    def __init__(self, limit: int) -> None:
        self._limit = self._limit_max = limit
        self._wait_ms = WAIT_MS
        self._alone = self._went_well = 0
        self._patience, self._has_grown = 1, False
        self.is_at_end = False
        """Whether the source had nothing behind the page that was read last."""
        self.trouble = ""
        """Why the attempts since the last page failed; empty: none did."""

    def page(self, wanted: Changes) -> Steps[Page]:
        """Return a page; its size is chosen here.

        Raises:
            MillstreamError: `change_unreadable`, or the source does not answer.
        """
        error, pauses, attempts = None, Pauses(RETRY_MIN_MS, RETRY_MAX_MS), 0
        while attempts < ATTEMPTS_MAX:
            asked = self._sized(wanted)
            try:
                page: Page = yield Ask("source", asked)
                return self._taken(_checked(page, asked), asked.limit)
            except MillstreamError as failed:
                error = failed
            if not may_go_well(error) and error.code != TOO_LARGE:
                raise error
            self.trouble = str(error)
            if asked.wait_ms:
                self._wait_ms = max(WAIT_MIN_MS, asked.wait_ms // 2)
                wanted = wanted._replace(wait_ms=0)
            elif self._limit == 1 or not (yield from _answers()):
                attempts += 1
            else:
                self._shrink()
            yield Pause(pauses.next())
        assert error is not None
        return (yield from self._read_alone(wanted, error))

    def _sized(self, wanted: Changes) -> Changes:
        return wanted._replace(limit=self._limit, wait_ms=min(wanted.wait_ms, self._wait_ms))

    def _taken(self, page: Page, limit: int) -> Page:
        self.is_at_end = len(page.rows) < limit if page.pending is None else page.pending == 0
        self._alone, self.trouble = 0, ""
        self._grow()
        return page

    def _shrink(self) -> None:
        if self._has_grown:
            self._patience = min(2 * self._patience, PATIENCE_MAX)
        self._limit, self._went_well, self._has_grown = self._limit // 2, 0, False

    def _grow(self) -> None:
        if self._has_grown:
            self._patience, self._has_grown = 1, False
        self._went_well += 1
        if self._went_well >= self._patience and self._limit < self._limit_max:
            self._limit = min(2 * self._limit, self._limit_max)
            self._went_well, self._has_grown = 0, True

    def _read_alone(self, wanted: Changes, error: MillstreamError) -> Steps[Page]:
        """Return the page of a change that fails, with what can be read of it."""
        if not (yield from _answers()):
            raise error
        feed, where = wanted.feed, encode(wanted.since).decode()
        reason = f"the source cannot answer for the change behind sequence {where}: {error}"
        if error.code in OF_A_SIDE:
            raise UnavailableError(reason, code=error.code)
        unreadable = UnavailableError(reason, code="change_unreadable")
        looks_inside = feed.selector is not None or feed.filter not in ("", "_design")
        is_plain = feed.style == "main_only"
        if looks_inside or is_plain or self._alone >= UNREADABLE_MAX:
            raise unreadable
        asked = self._sized(wanted)._replace(feed=feed._replace(style="main_only"), puller="")
        try:
            page: Page = yield Ask("source", asked)
            page = _checked(page, asked)
        except MillstreamError:
            raise unreadable from error
        alone = self._alone + 1
        page = self._taken(page, asked.limit)
        self._limit, self._alone, self._has_grown = 1, alone, False
        reason = f"not all its revisions can be read: {error}"
        return page._replace(rows=tuple(row._replace(reason=reason) for row in page.rows))


def _answers() -> Steps[bool]:
    """Return whether the source answers something else."""
    try:
        yield Ask("source", ReadInfo())
    except MillstreamError:
        return False
    return True


def _checked(page: Page, asked: Changes) -> Page:
    """Return a page that tells something.

    Raises:
        RemoteProtocolError: the reader would come no further.
    """
    if not page.rows and page.pending and page.place.seq == asked.since:
        raise RemoteProtocolError(
            f"the peer says that {page.pending} changes are left and names none of them"
        )
    return page
