r"""The receipt of a clean stop: what must match for the next start to go on without a new branch.

The same 16 random bytes stand in the log's last record and in the file `receipt` beside the
segments, there with inode and ctime of the last segment and the machine's boot id. A copied or
restored directory, a crash and a reboot all fail to match.

    MILLSTREAM RECEIPT 1\n<receipt hex> <inode> <ctime ns> <boot id> <crc32 hex>\n

Elsewhere: when it is written and withdrawn (`store`).
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

from millstream.ports.disk import Disk, FileIdentity

__all__ = ["RECEIPT_NAME", "Receipt", "read_receipt", "write_receipt"]

RECEIPT_NAME: Final = "receipt"
_TITLE: Final = b"MILLSTREAM RECEIPT 1\n"
_READ_BYTES: Final = 4096


class Receipt(NamedTuple):
    """A clean stop."""

    receipt: bytes
    identity: FileIdentity
    boot_id: str


def write_receipt(disk: Disk, receipt: Receipt) -> None:
    """Write the file beside the log, durably."""
    inode, ctime_ns = receipt.identity
    line = f"{receipt.receipt.hex()} {inode} {ctime_ns} {receipt.boot_id}".encode()
    file = disk.open(RECEIPT_NAME, create=True)
    file.truncate(0)
    file.write_at(0, b"%s%s %08x\n" % (_TITLE, line, crc32(line)))
    file.sync()
    file.close()
    disk.sync_directory()


def read_receipt(disk: Disk) -> Receipt | None:
    """Return the receipt beside the log; None if there is no whole one."""
    if RECEIPT_NAME not in disk.names():
        return None
    file = disk.open(RECEIPT_NAME)
    data = file.read_at(0, _READ_BYTES)
    file.close()
    line, _, checksum = data[len(_TITLE) :].rstrip(b"\n").rpartition(b" ")
    if data[: len(_TITLE)] != _TITLE or checksum != b"%08x" % crc32(line):
        return None
    receipt, inode, ctime_ns, boot_id = line.decode().split(" ")
    return Receipt(bytes.fromhex(receipt), (int(inode), int(ctime_ns)), boot_id)
