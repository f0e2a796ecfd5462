"""An index read by nothing but LMDB, msgpack and crc32, as docs/reference/index-format.md says."""

import struct
import zlib

import lmdb
import msgspec

from millstream.views.core.collation import encode_key
from support.views.filled_index import DOCUMENTS, SHAPE, document, filled_index


class Stranger:
    """A reader written from the page."""

    def __init__(self, path):
        generation = max(int(each.name) for each in path.iterdir() if each.name.isdecimal())
        self.environment = lmdb.open(str(path / str(generation)), readonly=True, lock=False)
        with self.environment.begin() as transaction:
            self.pairs = dict(transaction.cursor())
        self.meta = msgspec.msgpack.decode(self.pairs[b"m"])
        last = max(key for key in self.pairs if key[:1] == b"h")
        self.header = self.opened(self.pairs[last], 0)

    @staticmethod
    def opened(value, start):
        checksum, body = struct.unpack(">I", value[:4])[0], value[4:]
        assert checksum == zlib.crc32(body, start)
        return msgspec.msgpack.decode(body)

    def rows(self, root):
        """Yield (partition, key, value)."""
        if root is not None:
            number, height, _, _, _ = root
            yield from self.below(number, height)

    def below(self, number, height):
        node = self.opened(self.pairs[b"n" + struct.pack(">Q", number)], number & 0xFFFFFFFF)
        if height:
            for child in node[1]:
                yield from self.below(child, height - 1)
            return
        keys, values, partitions = node
        if len(partitions) == 2 * len(keys):
            partitions = struct.unpack(f">{len(keys)}H", partitions)
        yield from zip(partitions, keys, values, strict=True)


def test_a_stranger_reads_all_rows(tmp_path):
    filled_index(tmp_path / SHAPE.signature).close()
    read = Stranger(tmp_path / SHAPE.signature)
    assert read.meta == {"format": 1, "signature": SHAPE.signature, "collation": SHAPE.collation}
    header = read.header
    assert header["reduces"] == [["_count", "_sum"], ["_count", SHAPE.reduces[1][1]]]
    assert header["states"] == dict.fromkeys(range(4), "active")
    assert header["positions"] == {p: [7, 300, 300, 300, None] for p in range(4)}
    assert header["failover_logs"][2] == [[7, 0, 1]]
    assert header["void"] == b""
    found = {}
    for tree, root in enumerate(header["trees"]):
        for partition, key, value in read.rows(root):
            length = int.from_bytes(key[-2:], "big")
            doc_id, ekey = key[-3 - length : -3], key[: -3 - length]
            texts = msgspec.msgpack.decode(value)
            found[tree, partition, doc_id, ekey] = tuple(texts)
    right = {
        (tree, each.partition, each.doc_id, ekey): (json_key, json_value)
        for each in (document(number, 2) for number in range(DOCUMENTS))
        for tree, ekey, json_key, json_value in each.rows
    }
    assert found == right
    assert (0, 1, b"document-00001", encode_key(1)) in found


def test_a_stranger_reads_counts_sets_partials_and_the_back_index(tmp_path):
    filled_index(tmp_path / SHAPE.signature).close()
    read = Stranger(tmp_path / SHAPE.signature)
    _, _, count, partitions, partial = read.header["trees"][0]
    assert (count, partitions, msgspec.msgpack.decode(partial)) == (200, b"\x0f", [200, 400])
    entries = {
        (int.from_bytes(key[:2], "big"), key[2:]): msgspec.msgpack.decode(value)
        for _, key, value in read.rows(read.header["back"])
    }
    assert entries[1, b"document-00001"] == [[0, [encode_key(1)]], [1, [encode_key("odd")]]]
    assert len(entries) == DOCUMENTS
    free = [read.opened(value, 0) for key, value in read.pairs.items() if key[:1] == b"f"]
    live = {number for root in read.header["trees"] for number in [root[0]]}
    assert free
    assert not live & {number for numbers, _ in free for number in numbers}
