r"""The receipt: what the log holds at least, and the proof of a clean stop.

The file `receipt` stands beside the segments. Its first line says how far the log reached,
durably, when the line was written: at a start, when a segment was begun, at a clean stop. A log
that holds less has lost something. The second line is there only after a clean stop. Its 16 random
bytes stand in the log's last record, too; with them are inode and ctime of the last segment and
the machine's boot id. A copied or restored directory, a crash and a reboot all fail to match, so
that the next start begins a new branch.

    MILLSTREAM RECEIPT 2\n
    <log id hex> <segment> <end> <crc32 of the segment up to there, hex> <crc32 hex>\n
    <receipt hex> <inode> <ctime ns> <boot id> <crc32 hex>\n

Version 1, of older programs, has the second line alone.

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
    "RECEIPT_NAME", "Extent", "FoundReceipt", "Receipt", "read_receipt", "withdraw_receipt",
    "write_receipt",
]  # fmt: skip

RECEIPT_NAME: Final = "receipt"
_NEW_NAME: Final = "receipt.new"
_TITLE: Final = b"MILLSTREAM RECEIPT 2\n"
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
    is_cut: bool = False
    """What would say that the stop was clean is damaged."""


def write_receipt(disk: Disk, extent: Extent, receipt: Receipt | None = None) -> None:
    """Replace the file beside the log, durably; with a receipt after a clean stop only."""
    log_id, (segment, end), checksum = extent
    data = _TITLE + _line(f"{log_id.hex()} {segment} {end} {checksum:08x}")
    if receipt is not None:
        inode, ctime_ns = receipt.identity
        data += _line(f"{receipt.receipt.hex()} {inode} {ctime_ns} {receipt.boot_id}")
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
    is_known = data.startswith(_TITLE)
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
    first, end, second = data[len(_TITLE) :].partition(b"\n")
    extent = _extent_of(first + end) if data.startswith(_TITLE) else None
    if extent is None:
        return FoundReceipt(damage="it is not what was written")
    receipt = _receipt_of(second)
    return FoundReceipt(extent, receipt, is_cut=bool(second) and receipt is None)


def _line(content: str) -> bytes:
    return b"%s %08x\n" % (content.encode(), crc32(content.encode()))


def _fields(line: bytes, count: int) -> list[str] | None:
    """Return the fields of a whole line, None if it is damaged."""
    content, _, checksum = line.removesuffix(b"\n").rpartition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % crc32(content):
        return None
    fields = content.decode().split(" ")
    return fields if len(fields) == count else None


def _extent_of(line: bytes) -> Extent | None:
    fields = _fields(line, 4)
    if fields is None:
        return None
    log_id, segment, end, checksum = fields
    return Extent(bytes.fromhex(log_id), Place(int(segment), int(end)), int(checksum, 16))


def _receipt_of(line: bytes) -> Receipt | None:
    fields = _fields(line, 4)
    if fields is None:
        return None
    receipt, inode, ctime_ns, boot_id = fields
    return Receipt(bytes.fromhex(receipt), (int(inode), int(ctime_ns)), boot_id)
