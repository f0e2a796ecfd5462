"""Files of rows and documents that a writer outside stages."""

import io

import pytest

from millstream.errors import UsageError
from millstream.views.core.index.header import DocumentRows
from millstream.views.core.index.staged import (
    BLOCK_BYTES,
    BLOCK_BYTES_MAX,
    BLOCK_ROWS,
    END,
    block_of_documents,
    block_of_rows,
    blocks_of,
    read_documents,
    read_rows,
)

ROWS = [(b"a", 0, b"1"), (b"b\x00", 3, b""), (b"c", 1023, b"x" * 300)]
WHOLE = block_of_rows(ROWS[:2]) + block_of_rows(ROWS[2:]) + END


def rows_of(data):
    return list(read_rows(io.BytesIO(data), "r1"))


def test_rows_come_back_by_blocks():
    assert rows_of(WHOLE) == [ROWS[:2], ROWS[2:]]
    assert rows_of(END) == []
    assert rows_of(block_of_rows([]) + END) == []


def test_blocks_are_bounded_in_rows_and_bytes():
    small = [(b"%06d" % n, 0, b"") for n in range(BLOCK_ROWS * 2 + 1)]
    assert [*map(len, rows_of(b"".join(blocks_of(small)) + END))] == [BLOCK_ROWS, BLOCK_ROWS, 1]
    large = [(b"%d" % n, 0, bytes(BLOCK_BYTES // 3)) for n in range(7)]
    large[6] = (b"6", 0, bytes(BLOCK_BYTES * 2))
    blocks = list(blocks_of(large))
    assert rows_of(b"".join(blocks) + END) == [
        large[:1],
        large[1:3],
        large[3:5],
        large[5:6],
        large[6:],
    ]
    assert all(len(block) <= BLOCK_BYTES + 8 for block in blocks[:-1])
    assert list(blocks_of([])) == []


def test_documents_come_back():
    documents = [
        DocumentRows(3, b"d1", [(0, b"e", b"1", b"null"), (2, b"f", b'"k"', b"{}")]),
        DocumentRows(4, b"d2", []),
    ]
    file = io.BytesIO(block_of_documents(documents) + END)
    ((one, two),) = read_documents(file, "r")
    assert (one.partition, one.doc_id, one.rows) == (3, b"d1", documents[0].rows)
    assert (two.partition, two.doc_id, list(two.rows)) == (4, b"d2", [])


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_truncated_bytes_are_refused(size):
    with pytest.raises(UsageError, match="'r1' cannot be used"):
        rows_of(WHOLE[:size])


@pytest.mark.parametrize("at", range(8, 40))
def test_damaged_bytes_are_refused(at):
    with pytest.raises(UsageError) as caught:
        rows_of(WHOLE[:at] + bytes([WHOLE[at] ^ 1]) + WHOLE[at + 1 :])
    assert caught.value.code == "bad_run"


def test_rows_out_of_order_are_refused():
    with pytest.raises(UsageError, match="not in order"):
        rows_of(block_of_rows(ROWS[1:]) + block_of_rows(ROWS[:1]) + END)


def test_a_block_is_bounded():
    with pytest.raises(UsageError, match="a block of"):
        rows_of((BLOCK_BYTES_MAX + 1).to_bytes(4, "big") + bytes(4))


def test_a_block_of_something_else_is_refused():
    with pytest.raises(UsageError):
        rows_of(block_of_documents([DocumentRows(1, b"d", [])]) + END)
