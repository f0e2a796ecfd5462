r"""How far the log was durable when the process ended, whatever ended it.

The file `reached` stands beside the receipt. The receipt is replaced durably, so it is written
rarely; this file is written after every commit and never synced. What it says was true when it was
written, so that it may be believed whatever became of it; it may only be old:

- a killed process leaves it exact, because the system keeps what was written;
- a machine that lost power leaves it as it was when the system last wrote it back.

    MILLSTREAM REACHED 1 <log id hex> <boot id> <crc32 hex>\n        offset 0
    <log id hex> <segment> <end> <crc32 of the segment, hex> <crc32 hex>\n    offsets 512 and 1024

The two places are written in turn. So a process that is killed within a write leaves the other.

Invariants:
1. A place is noted after the commit before it was synced.
2. The first line is durable before the first place is noted, and is not changed after that. In the
   boot that it names one of the two lines behind it is always whole.

Elsewhere: the receipt and the form of its lines (`receipt`), who writes and reads it
(`segment_log`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from millstream.ports.disk import Disk, File
from millstream.storage.core.receipt import Extent, decode_extent, encode_extent, fields, line

__all__ = ["REACHED_NAME", "FoundReached", "Reached", "read_reached"]

REACHED_NAME: Final = "reached"
_NEW_NAME: Final = "reached.new"
_TITLE: Final = "MILLSTREAM REACHED 1 "
_PLACES: Final = (512, 1024)
"""Each in a sector of its own, which a disk writes whole."""
_PLACE_BYTES: Final = 512


class FoundReached(NamedTuple):
    """What the file says; `extent` is the farthest place that it names."""

    extent: Extent | None = None
    log_id: bytes = b""
    damage: str = ""
    """Why it cannot be believed that the log reached no farther; empty if all is well."""
    is_there: bool = True


class Reached:
    """The file of one log that is written."""

    def __init__(self, disk: Disk, extent: Extent) -> None:
        """Begin the file anew, durably.

        Raises:
            OSError: it cannot be written; what was there is as it was.
        """
        title = line(f"{_TITLE}{extent.log_id.hex()} {disk.boot_id() or '-'}")
        noted = encode_extent(extent).ljust(_PLACE_BYTES, b"\0")
        self._file: File = disk.open(_NEW_NAME, create=True)
        self._file.truncate(0)
        self._file.write_at(0, title.ljust(_PLACES[0], b"\0") + noted + noted)
        self._file.sync()
        disk.rename(_NEW_NAME, REACHED_NAME)
        disk.sync_directory()
        self._turn = 0

    def note(self, extent: Extent) -> None:
        """Note a place that the log has reached, durably; a place that cannot be noted is not."""
        self._turn = 1 - self._turn
        with suppress(OSError):  # the commit is durable all the same
            self._file.write_at(_PLACES[self._turn], encode_extent(extent))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_reached(disk: Disk) -> FoundReached:
    """Return what the file beside the log says."""
    if REACHED_NAME not in disk.names():
        return FoundReached(is_there=False)
    file = disk.open(REACHED_NAME)
    data = file.read_at(0, _PLACES[-1] + _PLACE_BYTES)
    file.close()
    title = fields(_line_at(data, 0), 5)
    if title is None or not data.startswith(_TITLE.encode()):
        return FoundReached(damage="it is not what was written")
    extents = [decode_extent(_line_at(data, place)) for place in _PLACES]
    whole = [extent for extent in extents if extent is not None]
    if not whole and title[4] == disk.boot_id():
        return FoundReached(damage="neither of its places is what was written")
    farthest = max(whole, key=lambda extent: extent.place, default=None)
    return FoundReached(farthest, bytes.fromhex(title[3]))


def _line_at(data: bytes, offset: int) -> bytes:
    content, end, _ = data[offset : offset + _PLACE_BYTES].partition(b"\n")
    return content + end
