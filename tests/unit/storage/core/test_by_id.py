import random

from millstream.storage.core import by_id as module
from millstream.storage.core import new_keys
from millstream.storage.core.by_id import Applied, ById, Recent
from millstream.storage.core.segment_files import Place
from millstream.storage.core.summary import PartitionSummary


class DictMap:
    def __init__(self):
        self.data = {}

    def get(self, key):
        return self.data.get(key)

    def checksum(self):
        raise AssertionError("nobody asks")

    seal = distrust = checksum

    def get_many(self, keys):
        return [self.data.get(key) for key in keys]

    def count(self):
        return len(self.data)

    def keys(self, prefix):
        return iter(sorted(key for key in self.data if key.startswith(prefix)))

    def page(self, low, high, count, *, descending):
        keys = (key for key in self.data if low <= key < high)
        return sorted(keys, reverse=descending)[:count]

    def apply_steps(self, pieces):
        before = b""
        for puts, removals in pieces:
            assert puts == sorted(puts)
            assert not puts or puts[0][0] > before
            before = puts[-1][0] if puts else before
            self.data.update(puts)
            for key in removals:
                self.data.pop(key, None)
            yield

    def clear(self):
        self.data.clear()

    def close(self, *, is_durable):
        pass


APPLIED = Applied(bytes(range(16)), Place(3, 900), 77)


def nowhere(partition_id, seqnos, first_segment):
    return {}


def test_what_is_recent_gets_its_place_when_it_is_applied():
    by_id = ById(DictMap())
    by_id.pending[b"\0\1k"] = (1, 1, 64)
    by_id.note(1, [b"k", b"l"], [5, 6], [])
    by_id.note(1, [b"k"], [7], [])
    assert by_id.recent_seqno(1, b"k") == 7
    assert by_id.recent_seqno(2, b"k") is None
    assert sorted(by_id.keys(1)) == [b"k", b"l"]
    batch = by_id.take(APPLIED, {})
    assert by_id.recent_seqno(1, b"l") == 6

    def places(partition_id, seqnos, first_segment):
        assert (partition_id, seqnos) == (1, [6, 7])
        return {6: Place(2, 100), 7: Place(3, 200)}

    list(by_id.apply_steps(batch, places))
    assert by_id.recent_seqno(1, b"k") is None
    assert by_id.get(b"\0\1k") == (7, 3, 200)
    assert by_id.get(b"\0\1l") == (6, 2, 100)


def test_a_batch_brings_values_removals_place_and_summaries():
    by_id = ById(DictMap())
    assert by_id.applied() is None
    summary = PartitionSummary()
    summary.on_change(7, is_mark=True)
    by_id.pending.update({b"\0\1k": (7, 3, 100), b"\0\1gone": None, b"\0\2k": (1, 1, 64)})
    list(by_id.apply_steps(by_id.take(APPLIED, {1: summary}), nowhere))
    assert by_id.applied() == APPLIED
    assert by_id.summary(1).mark == 7
    assert by_id.summary(2).mark == 0
    assert by_id.get(b"\0\1k") == (7, 3, 100)
    assert by_id.get(b"\0\1gone") is None
    by_id.pending[b"\0\1k"] = None
    assert by_id.get(b"\0\1k") is None
    assert list(by_id.keys(1)) == []
    assert list(by_id.keys(2)) == [b"k"]
    list(by_id.apply_steps(by_id.take(APPLIED, {}), nowhere))
    assert by_id.get(b"\0\1k") is None
    by_id.clear()
    assert by_id.applied() is None
    assert by_id.get(b"\0\2k") is None


def test_filling_leaves_no_applied_place():
    by_id = ById(DictMap())
    by_id.fill({b"\0\1b": (1, 1, 64), b"\0\1a": (2, 1, 164), b"\0\1c": None})
    assert by_id.get(b"\0\1a") == (2, 1, 164)
    assert by_id.applied() is None


def test_what_is_being_applied_can_be_found(directory):
    store = directory.open()
    directory.write(0, (b"a", b"1"), (b"b", b"1"))
    batch = store.take_by_id()
    assert directory.value(0, b"a") == b"1"
    directory.write(0, (b"a", b"2"))
    again = store.take_by_id()  # before the first was applied
    assert (directory.value(0, b"a"), directory.value(0, b"b")) == (b"2", b"1")
    store.apply_by_id(batch)
    store.apply_by_id(again)
    assert (directory.value(0, b"a"), directory.value(0, b"b")) == (b"2", b"1")
    assert store.count_pending_by_id() == 0
    assert sorted(store.keys(0)) == [b"a", b"b"]


def test_many_partitions_and_keys_that_are_prefixes(directory):
    directory.partition_count = 1024
    store = directory.open()
    for p in (0, 1, 255, 256, 1023):
        directory.write(p, (b"\x00", b"%d" % p), (b"\xff\xffapplied", b"x"), (b"k" * 250, b"y"))
    store.commit_by_id()
    directory.crash()
    store = directory.open()
    for p in (0, 1, 255, 256, 1023):
        assert directory.value(p, b"\x00") == b"%d" % p
        assert sorted(store.keys(p)) == [b"\x00", b"k" * 250, b"\xff\xffapplied"]
    assert not store.has_records(2)


def test_only_what_the_map_names_is_amended():
    by_id = ById(DictMap())
    batch = by_id.take(APPLIED, {})._replace(
        changes={
            b"\0\1a": (1, 1, 64),
            b"\0\1b": (2, 1, 99),
            b"\0\1c": (3, 2, 64),
            b"\0\1e": (5, 4, 8),
        }
    )
    assert by_id.reached() == Place(0, 0)
    list(by_id.apply_steps(batch, nowhere))
    assert by_id.reached() == APPLIED.place
    assert by_id.count() == 5
    by_id.amend(1, [b"a", b"b", b"d", b"e"], [1, 1, 4, 5], [80, 90, 70, 60], range(1, 4))
    by_id.amend(1, [b"c", b"e"], [3, 5], [0, 0], range(1, 4))
    assert by_id.get(b"\0\1a") == (1, 3, 80)
    assert by_id.get(b"\0\1e") == (5, 4, 8)
    assert by_id.get(b"\0\1b") == (2, 1, 99)
    assert by_id.get(b"\0\1c") is None
    assert by_id.get(b"\0\1d") is None
    assert ById(by_id._map).applied() == APPLIED


def test_what_could_not_be_applied_is_applied_with_the_next_batch():
    kept = DictMap()
    by_id, summary, later = ById(kept), PartitionSummary(), PartitionSummary()
    summary.on_change(5, is_mark=True)
    later.on_change(9, is_mark=True)
    by_id.pending[b"\0\1k"] = (1, 1, 64)
    by_id.take(APPLIED, {1: summary, 2: summary})  # and its transaction fails
    by_id.pending[b"\0\1l"] = (2, 1, 164)
    for _ in by_id.apply_steps(by_id.take(APPLIED, {2: later}), nowhere):
        pass
    assert {key for key in kept.data if key < b"\xff"} == {b"\0\1k", b"\0\1l"}
    assert (by_id.summary(1).mark, by_id.summary(2).mark) == (5, 9)


def test_what_could_not_be_applied_is_settled_before_a_rollback():
    by_id = ById(DictMap())
    by_id.note(1, [b"k", b"l"], [5, 6], [])
    by_id.take(APPLIED, {})  # and its transaction fails
    by_id.note(1, [b"k"], [7], [])
    by_id.settle(1, lambda partition_id, seqnos, first: {s: Place(2, s) for s in seqnos})
    assert by_id.recent_seqno(1, b"k") is None
    assert by_id.get(b"\0\1k") == (7, 2, 7)
    assert by_id.get(b"\0\1l") == (6, 2, 6)


def test_what_is_recent_is_merged_in_pieces(monkeypatch):
    monkeypatch.setattr(module, "UNMERGED_CHANGES_MAX", 100)
    monkeypatch.setattr(module, "MERGED_KEYS_MAX", 250)
    recent, known, dice = Recent(), {}, random.Random(1)
    for number in range(60):
        keys = dice.sample([b"k%d" % n for n in range(900)], dice.randrange(1, 40))
        seqnos = [number * 100 + at for at in range(len(keys))]
        recent.add(keys, seqnos, keys)
        known |= dict(zip(keys, seqnos, strict=True))
        assert recent._unmerged_changes <= 100, "whoever asks first would hold the loop"
    assert max(map(len, recent._merged)) < 250 + 40
    assert {key: recent.seqno_of(key) for key in known} == known == recent.merged()
    assert recent.seqno_of(b"never") is None
    recent.add([b"never"], [9999], [b"never"])
    assert recent.seqno_of(b"never") == 9999


def test_keys_are_found_by_what_they_begin_with_wherever_they_wait():
    by_id = ById(DictMap())
    by_id.pending.update({b"\0\1d/old": (1, 1, 64), b"\0\1e": (2, 1, 64), b"\0\0d/0": (1, 1, 9)})
    list(by_id.apply_steps(by_id.take(APPLIED, {}), nowhere))
    by_id.pending.update({b"\0\1d/pending": (3, 1, 64), b"\0\7d/other": None})
    by_id.note(1, [b"d/applied", b"x"], [4, 5], [b"d/applied", b"x"])
    by_id.take(APPLIED, {})
    by_id.note(1, [b"d/recent", b"d/old", b"dx"], [6, 7, 8], [b"d/recent", b"dx"])
    found = by_id.keys_beginning(b"d/", 3)
    assert found == [
        {b"d/0"}, {b"d/old", b"d/pending", b"d/applied", b"d/recent"}, set(),
    ]  # fmt: skip


def test_a_page_has_the_first_keys_of_all_that_is_known(monkeypatch):
    monkeypatch.setattr(new_keys, "SLICE_KEYS", 8)
    monkeypatch.setattr(new_keys, "LOOKS_MAX", 3)
    rng, by_id, known = random.Random(5), ById(DictMap()), set()
    for round_number in range(60):
        keys = [b"%03d" % rng.randrange(400) for _ in range(rng.randrange(1, 12))]
        match round_number % 4:
            case 0:
                by_id.pending |= {b"\0\1" + key: (1, 1, 64) for key in keys}
            case 1:
                by_id.fill({b"\0\1" + key: (1, 1, 64) for key in keys})
            case 2:
                new = [key for key in keys if key not in known]
                by_id.note(1, keys, range(1, 1 + len(keys)), new)
            case _:
                keys = keys[:1]
                by_id.note(1, keys * 20, range(1, 21), [] if keys[0] in known else keys)
                by_id.note(2, [b"other"], [1], [b"other"])
        if round_number in (20, 40):
            by_id.take(APPLIED, {})
        known.update(keys)
        low, high = sorted(b"%03d" % rng.randrange(400) for _ in range(2))
        for descending in (False, True):
            wanted = sorted((k for k in known if low <= k < high), reverse=descending)
            assert by_id.page(1, low, high, 5, descending=descending) == wanted[:5]
    assert by_id.page(1, b"x" * 9000, b"y" * 9000, 5, descending=False) == []


def test_a_page_of_both_batches_has_the_keys_that_could_not_be_applied():
    by_id = ById(DictMap())
    by_id.note(1, [b"c", b"a", b"old"], [1, 2, 3], [b"c", b"a"])
    by_id.take(APPLIED, {})
    by_id.note(1, [b"b"], [4], [b"b"])
    assert by_id.page(1, b"", b"z", 9, descending=False) == [b"a", b"b", b"c"]
    by_id.take(APPLIED, {})
    assert by_id.page(1, b"b", b"z", 9, descending=True) == [b"c", b"b"]


def test_a_key_whose_purged_record_leaves_the_map_stays_on_pages_if_it_was_written_again():
    by_id = ById(DictMap())
    by_id.fill({b"\0\1k": (5, 1, 64)})
    by_id.note(1, [b"k"], [9], [])
    by_id.amend(1, [b"k"], [5], [0], range(1, 2))
    assert by_id.get(b"\0\1k") is None
    assert by_id.page(1, b"", b"z", 5, descending=False) == [b"k"]
