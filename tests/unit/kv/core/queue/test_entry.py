import gc

from millstream.kv.core.queue.entry import ENTRY_BYTES, Entry, size_of


def test_what_a_document_takes() -> None:
    entry = Entry(b"123", b"12345", b"12")
    assert size_of(entry) == ENTRY_BYTES + 10
    assert not entry.is_used


def test_the_collector_does_not_know_of_them() -> None:
    assert not gc.is_tracked(Entry(b"", b"", b""))
