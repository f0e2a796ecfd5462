"""Entries and logs for tests of coordination."""

from __future__ import annotations

from millstream.vsr.core.entries import GENESIS, Body, Entry, Kind, Link, chain
from millstream.vsr.core.log import Log

GROUP = b"g" * 16


def chained(texts: str, link: Link = GENESIS, view: int = 1) -> list[Entry]:
    """Return one entry for each letter."""
    made = []
    for letter in texts:
        made.append(
            chain(
                link, group_id=GROUP, epoch=0, view=view, kind=Kind.REQUEST, ts_ms=0,
                body=Body(argv=(b"SET", b"x", letter.encode())),
            )
        )  # fmt: skip
        link = made[-1].header.link
    return made


def entry_of(argv: tuple[bytes, ...]) -> Entry:
    """Return an entry that asks for something, the first of a log."""
    return chain(
        GENESIS, group_id=GROUP, epoch=0, view=1, kind=Kind.REQUEST, ts_ms=0, body=Body(argv=argv)
    )


def log_of(texts: str, damaged: tuple[int, ...] = ()) -> Log:
    """Return a log with an entry for each letter; those LSNs are damaged."""
    log = Log()
    for entry in chained(texts):
        if entry.lsn in damaged:
            log.append_hole(entry.header)
        else:
            log.append(entry)
    return log
