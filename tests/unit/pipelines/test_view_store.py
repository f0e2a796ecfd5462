"""The store of rows against a bucket double: differences only, header last, one writer."""

from __future__ import annotations

import json

import msgspec
import pytest

from millstream.client.documents import Document
from millstream.client.kv import BulkResult
from millstream.errors import ConditionError, UnavailableError
from millstream.pipelines import view_store
from millstream.pipelines.bucket_changes import Changed
from millstream.pipelines.view_reduce import ReducedBatch, ViewRow
from millstream.pipelines.view_store import Applied, ViewStore, header_key, row_body, row_key
from millstream.views.core.design import parse_design

DESIGN = parse_design(
    {"views": {"v": {"map": "m", "reduce": "_sum"}, "w": {"map": "m"}}}, "d"
)  # fmt: skip


class Bucket:
    """The part of a kv client that the store uses."""

    bucket = "b-views"

    def __init__(self):
        self.documents = {}
        self.cas = 0
        self.writes = []
        self.before_write = []

    def _put(self, key, value):
        self.cas += 1
        self.documents[key] = Document(msgspec.json.encode(value), self.cas, 0x02000000, 1)
        self.writes.append(key)
        return self.documents[key]

    def get(self, key):
        return self.documents.get(key)

    def insert(self, key, value, *, durability):
        if key in self.documents:
            raise ConditionError("exists", code="key_exists")
        return self._put(key, value)

    def replace(self, key, value, *, cas, durability):
        assert durability == "persisted"
        if self.documents[key].cas != cas:
            raise ConditionError("other", code="cas_mismatch")
        return self._put(key, value)

    def apply_many(self, changes, *, durability):
        assert durability == "persisted"
        if self.before_write:
            self.before_write.pop()()
        done = 0
        for key, value in changes:
            done += 1
            if value is None:
                self.documents.pop(key, None)
                self.writes.append(key)
            else:
                self._put(key, value)
        return BulkResult(done, [])

    def rows(self):
        return [(key, doc.data) for key, doc in self.documents.items() if isinstance(key, bytes)]

    def values(self):
        return {key: doc.value["value"] for key, doc in self.documents.items() if key != HEADER}


class Changes:
    """What has changed in a bucket since the last call."""

    def __init__(self, bucket):
        self.bucket = bucket
        self.known = None

    def read(self):
        now = dict(self.bucket.rows())
        before, self.known = self.known, now
        if before is None:
            return Changed(True, dict(now))
        changed = {key: value for key, value in now.items() if before.get(key) != value}
        return Changed(False, changed | {key: None for key in before if key not in now})

    def forget(self):
        self.known = None


HEADER = header_key("d")


def batch(**values):
    rows = [ViewRow(0, json.dumps(key), None, str(n).encode()) for key, n in values.items()]
    return ReducedBatch(rows=rows)


def open_store(bucket, run="r1"):
    store = ViewStore(bucket, Changes(bucket), DESIGN, run)
    store.read_header()
    store.take_over({})
    return store


def test_only_differences_are_written_and_the_header_last():
    bucket = Bucket()
    store = open_store(bucket)
    assert store.apply(0, batch(a=1, b=2), {}) == Applied(2, 0)
    bucket.writes.clear()
    assert store.apply(1, batch(a=1, b=3, c=4), {}) == Applied(2, 0)
    assert bucket.writes == [b'd/v/"b"', b'd/v/"c"', header_key("d")]
    assert store.apply(2, batch(b=3, c=4), {}) == Applied(0, 1)
    assert b'd/v/"a"' not in bucket.documents
    assert bucket.get(header_key("d")).value["batch"] == 2


def test_a_row_says_what_it_is():
    bucket = Bucket()
    store = open_store(bucket)
    rows = [
        ViewRow(0, '["k",1]', None, b"7"),
        ViewRow(1, "null", "doc/1", b'[{"x":1},null]'),
    ]
    store.apply(5, ReducedBatch(rows=rows), {})
    named = {"ddoc": "d", "signature": DESIGN.named_signature, "stamp": {"run": "r1", "batch": 5}}
    assert bucket.documents[b'd/v/["k",1]'].value == {
        **named, "view": "v", "key": ["k", 1], "value": 7,
    }  # fmt: skip
    assert bucket.documents[b"d/w/null/doc/1"].value == {
        **named, "view": "w", "key": None, "id": "doc/1", "rows": [{"x": 1}, None],
    }  # fmt: skip


def test_a_new_run_finds_what_is_there():
    bucket = Bucket()
    open_store(bucket).apply(0, batch(a=1, b=2), {})
    bucket._put(b"other/v/1", {"ddoc": "other"})
    store = open_store(bucket, "r2")
    bucket.writes.clear()
    assert store.apply(1, batch(a=1), {}) == Applied(0, 1)
    assert bucket.writes == [b'd/v/"b"', header_key("d")]
    assert b"other/v/1" in bucket.documents


def test_applying_a_batch_again_changes_nothing():
    bucket = Bucket()
    open_store(bucket).apply(3, batch(a=1, b=2), {})
    before = dict(bucket.rows())
    assert open_store(bucket, "r2").apply(3, batch(a=1, b=2), {}) == Applied(0, 0)
    assert dict(bucket.rows()) == before


def test_half_a_batch_is_completed_by_the_next_run():
    bucket = Bucket()
    open_store(bucket).apply(0, batch(a=1, b=2), {})
    bucket._put(b'd/v/"a"', {"ddoc": "d", "half": "written"})
    bucket.documents.pop(b'd/v/"b"')
    assert open_store(bucket, "r2").apply(0, batch(a=1, b=2), {}) == Applied(2, 0)


def test_the_run_that_lost_the_store_stops_before_it_writes():
    bucket = Bucket()
    old = open_store(bucket, "r1")
    new = open_store(bucket, "r2")
    bucket.writes.clear()
    with pytest.raises(ConditionError) as caught:
        old.apply(0, batch(a=1), {})
    assert caught.value.code == "taken_over"
    assert bucket.writes == []
    new.apply(0, batch(a=1), {})


RIGHT = {b'd/v/"a"': 1, b'd/v/"b"': 2}


def write_late(bucket, **values):
    """What a run that was taken over still writes: row by group, None to delete it."""
    for key, value in values.items():
        name = row_key("d", "v", json.dumps(key), None)
        if value is None:
            bucket.documents.pop(name, None)
            continue
        body = row_body(DESIGN, ViewRow(0, json.dumps(key), None, str(value).encode()))
        bucket._put(name, msgspec.Raw(body + b',"stamp":{"run":"r1","batch":9}}'))


def test_rows_that_a_run_taken_over_wrote_late_are_put_right_by_the_next_batch():
    bucket = Bucket()
    open_store(bucket, "r1")
    new = open_store(bucket, "r2")
    assert new.apply(0, batch(a=1, b=2), {}) == Applied(2, 0)
    write_late(bucket, a=70, b=None, c=3)
    assert new.apply(1, batch(a=1, b=2), {}) == Applied(2, 1)
    assert bucket.values() == RIGHT


def test_rows_written_late_in_the_middle_of_a_batch_are_put_right_before_its_header():
    bucket = Bucket()
    open_store(bucket, "r1").apply(0, batch(a=1), {})
    new = open_store(bucket, "r2")
    bucket.before_write.append(lambda: write_late(bucket, a=70, b=70, c=3))
    new.apply(1, batch(a=1, b=2), {})
    assert bucket.values() == RIGHT
    assert bucket.writes[-1] == HEADER


def test_a_run_that_is_taken_over_in_the_middle_of_a_batch_stops_after_its_chunk(monkeypatch):
    monkeypatch.setattr(view_store, "ROWS_PER_CHECK", 2)
    bucket = Bucket()
    old = open_store(bucket, "r1")
    bucket.before_write.append(lambda: open_store(bucket, "r2"))
    with pytest.raises(ConditionError) as caught:
        old.apply(0, batch(a=7, b=7, c=7, d=7, e=7), {})
    assert caught.value.code == "taken_over"
    assert len(bucket.values()) == 2
    open_store(bucket, "r3").apply(0, batch(a=1, b=2), {})
    assert bucket.values() == RIGHT


def test_a_store_that_is_written_by_others_all_the_time_is_told():
    bucket = Bucket()
    store = open_store(bucket)
    writes = range(2, 2 + view_store.PASSES_MAX)
    bucket.before_write += [lambda n=n: write_late(bucket, **{f"z{n}": n}) for n in writes]
    with pytest.raises(UnavailableError, match="let only its pipeline write") as caught:
        store.apply(0, batch(a=1), {})
    assert caught.value.code == "store_disturbed"


def test_what_was_known_is_void_when_the_bucket_began_a_new_history():
    bucket = Bucket()
    store = open_store(bucket)
    store.apply(0, batch(a=1, b=2), {})
    bucket.documents.pop(b'd/v/"a"')
    store._changes.forget()
    assert store.apply(1, batch(a=1, b=2), {}) == Applied(1, 0)
    assert bucket.values() == RIGHT


def test_rows_of_another_bucket_are_cleared():
    bucket = Bucket()
    open_store(bucket).apply(0, batch(a=1), {})
    store = open_store(bucket, "r2")
    store.clear()
    assert bucket.rows() == []
    assert store.apply(0, batch(a=1), {}) == Applied(1, 0)


def test_long_keys_are_hashed_and_found_again():
    long_key = json.dumps("k" * 300)
    assert row_key("d", "v", long_key, None).startswith(b"#")
    assert len(row_key("d" * 100, "v" * 100, long_key, "i" * 250)) <= 250
    bucket = Bucket()
    reduced = ReducedBatch(rows=[ViewRow(0, long_key, None, b"1")])
    open_store(bucket).apply(0, reduced, {})
    assert open_store(bucket, "r2").apply(1, ReducedBatch(), {}) == Applied(0, 1)


def test_bodies_differ_by_signature():
    other = parse_design({"views": {"v": {"map": "other", "reduce": "_sum"}}}, "d")
    row = ViewRow(0, "1", None, b"1")
    assert row_body(DESIGN, row) != row_body(other, row)
