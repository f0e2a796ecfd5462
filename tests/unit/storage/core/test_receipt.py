import pytest

from millstream.runtime.disk import OsDisk
from millstream.storage.core.receipt import RECEIPT_NAME, Receipt, read_receipt, write_receipt

RECEIPT = Receipt(bytes(range(16)), (12, 3_000_000_000), "a-boot-id")


def test_a_receipt_is_read_back(tmp_path):
    disk = OsDisk(tmp_path)
    assert read_receipt(disk) is None
    write_receipt(disk, RECEIPT)
    assert read_receipt(disk) == RECEIPT
    write_receipt(disk, RECEIPT._replace(boot_id="b"))
    assert read_receipt(disk).boot_id == "b"


@pytest.mark.parametrize("at", [0, 25, 60, -3])
def test_a_damaged_or_cut_receipt_is_none(tmp_path, at):
    disk = OsDisk(tmp_path)
    write_receipt(disk, RECEIPT)
    data = bytearray((tmp_path / RECEIPT_NAME).read_bytes())
    (tmp_path / RECEIPT_NAME).write_bytes(data[:at])
    assert read_receipt(disk) is None
    data[at] ^= 1
    (tmp_path / RECEIPT_NAME).write_bytes(data)
    assert read_receipt(disk) is None
