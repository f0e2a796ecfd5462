import lmdb
import pytest

from millstream.kv.aio.documents.local_scan import (
    DIGEST_KEY,
    as_digest,
    digest_of,
    is_readable,
    scan_apart,
    weight,
)

ENTRIES = {b"la": b"1", b"lb": b"22" * 3000, b"sx": b""}


@pytest.fixture
def path(tmp_path):
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        for key, value in ENTRIES.items():
            transaction.put(key, value)
        total = sum(weight(key, value) for key, value in ENTRIES.items())
        transaction.put(DIGEST_KEY, as_digest(total))
        assert transaction.get(DIGEST_KEY) == digest_of(transaction)
    return tmp_path


def test_entries_that_agree_with_their_digest(path):
    assert scan_apart(path) == (True, "")
    assert is_readable(path)


def test_entries_that_do_not(path):
    for change in (lambda t: t.put(b"la", b"2"), lambda t: t.delete(b"sx")):
        with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
            change(transaction)
        assert scan_apart(path) == (True, "its entries are not what was written")
        assert is_readable(path)
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.delete(DIGEST_KEY)
    assert scan_apart(path) == (False, "")


def test_pages_that_end_the_process_that_reads_them_end_a_child(path):
    data = path / "data.mdb"
    whole = bytearray(data.read_bytes())
    for page in range(2, len(whole) // 4096):
        whole[4096 * page + 10 : 4096 * page + 64] = b"\xff" * 54
    data.write_bytes(whole)
    assert scan_apart(path)[1]
    assert not is_readable(path)
