import pytest

from millstream.runtime.disk import OsDisk
from millstream.storage.core.receipt import (
    RECEIPT_NAME,
    Extent,
    FoundReceipt,
    Receipt,
    read_receipt,
    withdraw_receipt,
    write_receipt,
)
from millstream.storage.core.segment_files import Place

EXTENT = Extent(bytes(range(16, 32)), Place(3, 1000), 0xDEADBEEF)
RECEIPT = Receipt(bytes(range(16)), (12, 3_000_000_000), "a-boot-id")
OF_VERSION_1 = (
    b"MILLSTREAM RECEIPT 1\n000102030405060708090a0b0c0d0e0f 12 3000000000 a-boot-id 27217d80\n"
)


def test_a_receipt_is_read_back(tmp_path):
    disk = OsDisk(tmp_path)
    assert not read_receipt(disk).is_there
    write_receipt(disk, EXTENT, RECEIPT)
    assert read_receipt(disk) == FoundReceipt(EXTENT, RECEIPT)
    write_receipt(disk, EXTENT, RECEIPT._replace(boot_id="b"))
    assert read_receipt(disk).receipt.boot_id == "b"
    write_receipt(disk, EXTENT)
    assert read_receipt(disk) == FoundReceipt(EXTENT)


def test_a_withdrawn_clean_stop_leaves_how_far_the_log_reached(tmp_path):
    disk = OsDisk(tmp_path)
    write_receipt(disk, EXTENT, RECEIPT)
    assert withdraw_receipt(disk)
    assert read_receipt(disk) == FoundReceipt(EXTENT)


def test_a_receipt_of_version_1_counts(tmp_path):
    disk = OsDisk(tmp_path)
    (tmp_path / RECEIPT_NAME).write_bytes(OF_VERSION_1)
    assert read_receipt(disk) == FoundReceipt(None, RECEIPT)
    assert not withdraw_receipt(disk), "it has nothing that would stay"
    (tmp_path / RECEIPT_NAME).write_bytes(OF_VERSION_1[:-5])
    assert read_receipt(disk) == FoundReceipt()


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_no_damage_of_a_receipt_makes_it_say_something_else(tmp_path, how):
    disk = OsDisk(tmp_path)
    write_receipt(disk, EXTENT, RECEIPT)
    whole = (tmp_path / RECEIPT_NAME).read_bytes()
    first_end = whole.index(b"\n", 21) + 1
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1
        (tmp_path / RECEIPT_NAME).write_bytes(whole[:at] if how == "cut" else data)
        found = read_receipt(disk)
        if at < first_end:
            assert found.damage
            assert found.extent is None
        else:
            assert found.extent == EXTENT
            assert found.is_cut == (how == "flipped" or at > first_end)
        assert found.receipt is None
