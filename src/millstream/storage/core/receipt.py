r"""The receipt: what the log holds at least, and the proof of a clean stop.

The file `receipt` stands beside the segments. Its first line says how far the log reached,
durably, when the line was written: at a start, when a segment was begun, at a clean stop. A log
that holds less has lost something. The second line is there only after a clean stop. Its 16 random
bytes stand in the log's last record, too; with them are inode and ctime of the last segment and
the machine's boot id. A copied or restored directory, a crash and a reboot all fail to match, so
that the next start begins a new branch.

    MILLSTREAM RECEIPT 3\n
    <log id hex> <segment> <end> <crc32 of the segment up to there, hex> reached <crc32 hex>\n
    <receipt hex> <inode> <ctime ns> <boot id> <crc32 hex>\n

Version 3 says that the file `reached` was begun beside it; version 2 lacks that word. Version 1,
of older programs, has the second line alone.

Invariants:
1. The file is replaced as a whole, durably; a clean stop is withdrawn by cutting the second line,
   which needs no space. So a damaged second line stands for no clean stop, and a damaged first
   line for damage.

Elsewhere: when it is written and withdrawn (`store`, `segment_log`).
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

from millstream.ports.disk import Disk, FileIdentity
from millstream.storage.core.segment_files import Place

__all__ = [
    "RECEIPT_NAME", "Extent", "FoundReceipt", "Receipt", "decode_extent", "encode_extent",
    "fields", "line", "read_receipt", "withdraw_receipt", "write_receipt",
]  # fmt: skip

RECEIPT_NAME: Final = "receipt"
_NEW_NAME: Final = "receipt.new"
_TITLE: Final = b"MILLSTREAM RECEIPT 2\n"
_TITLE_WITH_REACHED: Final = b"MILLSTREAM RECEIPT 3\n"
_REACHED: Final = " reached"
_OLD_TITLE: Final = b"MILLSTREAM RECEIPT 1\n"
_READ_BYTES: Final = 4096


class Extent(NamedTuple):
    """A place that the log reached, and the crc32 of its segment up to there."""

    log_id: bytes
    place: Place
    checksum: int


class Receipt(NamedTuple):
    """A clean stop."""

    receipt: bytes
    identity: FileIdentity
    boot_id: str


class FoundReceipt(NamedTuple):
    """What the file beside the log says."""

    extent: Extent | None = None
    receipt: Receipt | None = None
    damage: str = ""
    """Why it cannot be believed that the log holds no less; empty if all is well."""
    is_there: bool = True
    has_reached: bool = False
    """There must be a file `reached` beside it."""
    is_cut: bool = False
    """What would say that the stop was clean is damaged."""


def write_receipt(
    disk: Disk, extent: Extent, receipt: Receipt | None = None, *, has_reached: bool = False
) -> None:
    """Replace the file beside the log, durably; with a receipt after a clean stop only."""
    title, suffix = (_TITLE_WITH_REACHED, _REACHED) if has_reached else (_TITLE, "")
    data = title + encode_extent(extent, suffix)
    if receipt is not None:
        inode, ctime_ns = receipt.identity
        data += line(f"{receipt.receipt.hex()} {inode} {ctime_ns} {receipt.boot_id}")
    file = disk.open(_NEW_NAME, create=True)
    file.truncate(0)
    file.write_at(0, data)
    file.sync()
    file.close()
    disk.rename(_NEW_NAME, RECEIPT_NAME)
    disk.sync_directory()


def withdraw_receipt(disk: Disk) -> bool:
    """Take back the clean stop, without any space; False: the file has an older form."""
    file = disk.open(RECEIPT_NAME)
    data = file.read_at(0, _READ_BYTES)
    is_known = data.startswith((_TITLE, _TITLE_WITH_REACHED))
    if is_known:
        file.truncate(data.index(b"\n", len(_TITLE)) + 1)
    file.close()
    return is_known


def read_receipt(disk: Disk) -> FoundReceipt:
    """Return what the file beside the log says."""
    if RECEIPT_NAME not in disk.names():
        return FoundReceipt(is_there=False)
    file = disk.open(RECEIPT_NAME)
    data = file.read_at(0, _READ_BYTES)
    file.close()
    if data.startswith(_OLD_TITLE):
        return FoundReceipt(receipt=_receipt_of(data[len(_OLD_TITLE) :]))
    has_reached = data.startswith(_TITLE_WITH_REACHED)
    first, end, second = data[len(_TITLE) :].partition(b"\n")
    is_known = has_reached or data.startswith(_TITLE)
    extent = decode_extent(first + end, _REACHED if has_reached else "") if is_known else None
    if extent is None:
        return FoundReceipt(damage="it is not what was written")
    receipt = _receipt_of(second)
    is_cut = bool(second) and receipt is None
    return FoundReceipt(extent, receipt, has_reached=has_reached, is_cut=is_cut)


def line(content: str) -> bytes:
    """Return a line that says itself whether it is what was written."""
    return b"%s %08x\n" % (content.encode(), crc32(content.encode()))


def fields(line: bytes, count: int) -> list[str] | None:
    """Return the fields of a whole line, None if it is damaged."""
    content, _, checksum = line.removesuffix(b"\n").rpartition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % crc32(content):
        return None
    found = content.decode().split(" ")
    return found if len(found) == count else None


def encode_extent(extent: Extent, suffix: str = "") -> bytes:
    """Return the line that names a place, `suffix` behind it."""
    log_id, (segment, end), checksum = extent
    return line(f"{log_id.hex()} {segment} {end} {checksum:08x}{suffix}")


def decode_extent(line: bytes, suffix: str = "") -> Extent | None:
    """Return the place that a line names, None if it is damaged or has another suffix."""
    found = fields(line, 4 + suffix.count(" "))
    if found is None or found[4:] != suffix.split():
        return None
    log_id, segment, end, checksum = found[:4]
    return Extent(bytes.fromhex(log_id), Place(int(segment), int(end)), int(checksum, 16))


def _receipt_of(line: bytes) -> Receipt | None:
    found = fields(line, 4)
    if found is None:
        return None
    receipt, inode, ctime_ns, boot_id = found
    return Receipt(bytes.fromhex(receipt), (int(inode), int(ctime_ns)), boot_id)
