"""Whether sessions end when they may, and only then: watched while a world of replicas runs."""

from __future__ import annotations

from typing import Any

from millstream.vsr.core.entries import Entry, Kind
from millstream.vsr.core.replica.session_expiry import STEP_MS_MAX

__all__ = ["SessionWatch"]


class SessionWatch:
    """Counts, for each process, how many of its heartbeats as primary a client was silent."""

    def __init__(self) -> None:
        self.beats: dict[tuple[int, int], int] = {}
        self.since: dict[tuple[int, int, int, int], int] = {}
        self.heard: dict[tuple[int, int, int], int] = {}
        self.times: dict[int, int] = {}
        self.expired: set[int] = set()
        self.looked: dict[tuple[int, int, int, int], int] = {}

    def committed(self, entry: Entry) -> None:
        """Note how long a session may be silent, and which ones have ended."""
        if entry.header.kind is Kind.SESSION_OPEN:
            self.times[entry.lsn] = int(entry.content.argv[0])
        elif entry.header.kind is Kind.SESSION_EXPIRE:
            self.expired.update(map(int, entry.content.argv))

    def beat(self, number: int, replica: Any) -> None:
        """Note a heartbeat's time, if this one leads."""
        if replica.leading and not replica.suspended:
            process = (number, replica.incarnation)
            self.beats[process] = self.beats.get(process, 0) + 1

    def touched(self, number: int, replica: Any, session: int) -> None:
        """Note that a primary heard of a session."""
        if session and replica.leading and not replica.suspended and not replica.is_persisting:
            process = (number, replica.incarnation)
            self.heard[(*process, session)] = self.beats.get(process, 0)

    def check(self, number: int, replica: Any) -> str | None:
        """Return what is wrong with the sessions that a primary ends now."""
        process = (number, replica.incarnation)
        view = (*process, replica.epoch, replica.view)
        beats = self.beats.get(process, 0)
        since = self.since.setdefault(view, beats)
        for lsn in range(self.looked.get(view, replica.state.noop_lsn), replica.log.op_lsn + 1):
            entry = replica.log.entry_at(lsn)
            if entry is None or entry.header.kind is not Kind.SESSION_EXPIRE:
                continue
            for session in map(int, entry.content.argv):
                silent = beats - max(since, self.heard.get((*process, session), 0))
                if silent * STEP_MS_MAX < self.times.get(session, 0):
                    return f"session {session} ends after {silent} heartbeats of silence"
        self.looked[view] = replica.log.op_lsn + 1
        return None
