import shutil

import lmdb
import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.storage.aio import by_id
from millstream.storage.aio.by_id import LmdbByIdMap


@pytest.fixture
def path(tmp_path):
    return tmp_path / "byid"


def opened(path, pairs=()):
    store = LmdbByIdMap(path, map_bytes=1024 * 1024)
    if pairs:
        list(store.apply_steps([(sorted(pairs), [])]))
    return store


def test_pairs_are_put_removed_and_listed(path, monkeypatch):
    monkeypatch.setattr(by_id, "KEYS_PER_READ_MAX", 3)
    pairs = [(b"a%d" % n, b"%d" % n) for n in range(8)]
    store = opened(path, [*pairs, (b"b", b"x")])
    assert list(store.keys(b"a")) == [key for key, _ in pairs]
    assert list(store.keys(b"c")) == []
    list(store.apply_steps([([(b"a1", b"new")], [b"a2", b"unknown"])]))
    assert (store.get(b"a1"), store.get(b"a2"), store.get(b"b")) == (b"new", None, b"x")
    assert store.get_many([b"a1", b"a2", b"b", b"c"]) == [b"new", None, b"x", None]
    assert (store.get_many([]), store.count()) == ([], 8)
    store.clear()
    assert (store.get(b"b"), list(store.keys(b""))) == (None, [])
    store.close(is_durable=False)


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_killed_or_stopped_process_finds_its_map_again(path, is_durable):
    opened(path, [(b"a", b"1")]).close(is_durable=is_durable)
    store = opened(path)
    assert store.get(b"a") == b"1"
    store.close(is_durable=False)


@pytest.mark.parametrize(("is_durable", "found"), [(False, None), (True, b"1")])
def test_after_a_new_boot_only_a_durable_map_is_trusted(path, monkeypatch, is_durable, found):
    opened(path, [(b"a", b"1")]).close(is_durable=is_durable)
    monkeypatch.setattr(by_id, "boot_id", lambda: "another")
    store = opened(path)
    assert store.get(b"a") == found
    store.close(is_durable=False)
    monkeypatch.setattr(by_id, "boot_id", lambda: "a third")  # opened since: no longer durable
    store = opened(path)
    assert store.get(b"a") is None
    store.close(is_durable=False)


def test_a_copy_is_not_trusted(path, tmp_path):
    opened(path, [(b"a", b"1")]).close(is_durable=True)
    shutil.copytree(path, tmp_path / "copy")
    store = opened(tmp_path / "copy")
    assert store.get(b"a") is None
    store.close(is_durable=False)


def test_rubbish_is_removed(path):
    opened(path, [(b"a", b"1")]).close(is_durable=True)
    data = path / "data.mdb"
    with data.open("r+b") as file:
        file.write(b"rubbish" * 2000)
    store = opened(path)
    assert store.get(b"a") is None
    store.close(is_durable=False)


def test_a_full_map_says_so_and_keeps_what_it_has(path):
    store = opened(path, [(b"a", b"1")])
    with pytest.raises(UnavailableError, match="by-id") as raised:
        list(store.apply_steps([([(b"%06d" % n, bytes(100)) for n in range(20_000)], [])]))
    assert raised.value.code == "disk_full"
    assert isinstance(raised.value.__cause__, lmdb.MapFullError)
    assert store.get(b"a") == b"1"
    store.close(is_durable=False)


def damage(path, begin):
    """Overwrite all pages from `begin` on."""
    data = path / "data.mdb"
    content = data.read_bytes()
    data.write_bytes(content[:begin] + b"\xa5" * (len(content) - begin))
    # the same inode and boot: it is still trusted


PAIRS = [(b"%06d" % n, bytes(16)) for n in range(2000)]


def test_pages_that_changed_since_a_clean_stop_are_not_believed(path):
    opened(path, PAIRS).close(is_durable=True)
    again = opened(path)
    assert again.count() == len(PAIRS)
    again.close(is_durable=True)
    data = path / "data.mdb"
    whole = bytearray(data.read_bytes())
    whole[-1] ^= 1
    data.write_bytes(whole)
    assert LmdbByIdMap.unchanged(path) is None
    again = opened(path)
    assert again.count() == 0
    again.close(is_durable=True)


def test_pages_that_changed_after_a_kill_are_not_believed(path):
    store = opened(path, PAIRS)
    store.seal(store.checksum())
    store.close(is_durable=False)
    data = path / "data.mdb"
    whole = data.read_bytes()
    for at in range(0, len(whole), 997):
        again = opened(path)
        if not again.count():  # it was built anew after the damage before
            list(again.apply_steps([(PAIRS, [])]))
        again.seal(again.checksum())
        again.close(is_durable=False)
        whole = bytearray(data.read_bytes())
        whole[at] ^= 1
        data.write_bytes(whole)
        assert LmdbByIdMap.unchanged(path) is None
        again = opened(path)
        assert again.count() == 0
        again.close(is_durable=False)


def test_a_map_that_is_being_changed_when_the_process_is_killed_is_believed_as_it_was(path):
    store = opened(path, PAIRS)
    late = store.checksum()
    store.seal(late)
    steps = store.apply_steps([([(b"b", b"1")], []), ([(b"c", b"1")], [])])
    next(steps)
    assert len((path / "origin").read_text().split()) == 2, "no checksum"
    steps.close()
    store.close(is_durable=False)
    again = opened(path)
    assert (again.count(), again.get(b"b")) == (len(PAIRS), None)
    again.close(is_durable=False)


def test_a_checksum_of_pages_that_have_changed_since_is_not_noted(path):
    store = opened(path, PAIRS)
    late = store.checksum()
    list(store.apply_steps([([(b"b", b"1")], [])]))
    store.seal(late)
    store.close(is_durable=False)
    again = opened(path)
    assert again.get(b"b") == b"1"
    again.close(is_durable=False)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_checksum_of_pages_that_are_being_changed_is_not_noted(path, is_early):
    store = opened(path, PAIRS)
    steps = store.apply_steps([([(b"b", b"1")], []), ([(b"c", b"1")], [])])
    next(steps)
    during = store.checksum()
    if is_early:
        store.seal(during)
    list(steps)
    store.seal(during)
    store.close(is_durable=False)
    again = opened(path)
    assert again.get(b"b") == b"1"
    again.close(is_durable=False)


def test_a_map_that_is_found_to_be_wrong_is_not_trusted_though_it_was_sealed(path):
    store = opened(path, PAIRS)
    store.seal(store.checksum())
    store.distrust()
    list(store.apply_steps([([(b"b", b"1")], [])]))
    store.close(is_durable=True)
    again = opened(path)
    assert again.count() == 0
    again.close(is_durable=False)


def test_a_checksum_that_cannot_be_taken_back_has_the_map_built_anew(path, monkeypatch):
    store = opened(path, PAIRS)
    store.seal(store.checksum())
    monkeypatch.setattr(LmdbByIdMap, "_put_origin", refused)
    list(store.apply_steps([([(b"b", b"1")], [])]))
    store.close(is_durable=False)
    again = opened(path)
    assert again.count() == 0
    again.close(is_durable=False)


def refused(*_):
    raise OSError("no space")


def test_damage_met_while_running_is_named_and_gone_after_a_restart(path):
    opened(path, PAIRS).close(is_durable=False)
    damage(path, 8192)
    store = opened(path)
    with pytest.raises(CorruptionError, match=r"data\.mdb is damaged") as raised:
        store.get(b"000100")
    assert raised.value.code == "by_id_damaged"
    with pytest.raises(CorruptionError, match="restart"):
        list(store.keys(b""))
    with pytest.raises(CorruptionError, match="restart"):
        list(store.apply_steps([([(b"a", b"1")], [])]))
    store.close(is_durable=True)
    store = opened(path, [(b"a", b"1")])
    assert list(store.keys(b"")) == [b"a"]
    store.close(is_durable=False)


def test_a_damaged_map_can_be_cleared_and_is_trusted_again(path):
    opened(path, PAIRS).close(is_durable=False)
    damage(path, 8192)
    store = opened(path)
    with pytest.raises(CorruptionError):
        store.get(b"000100")
    store.clear()
    list(store.apply_steps([([(b"a", b"1")], [])]))
    store.close(is_durable=True)
    store = opened(path)
    assert list(store.keys(b"")) == [b"a"]
    store.close(is_durable=False)


@pytest.mark.parametrize("size", [100, 4096, 8192, 40_000])
def test_a_file_that_lost_its_end_is_removed(path, size):
    opened(path, PAIRS).close(is_durable=True)
    with (path / "data.mdb").open("r+b") as file:
        file.truncate(size)
    store = opened(path)
    assert list(store.keys(b"")) == []
    store.close(is_durable=False)


def test_a_directory_that_cannot_hold_a_map_is_told(path, monkeypatch):
    def refuse(*args, **options):
        raise lmdb.MemoryError("no address space")

    monkeypatch.setattr(by_id.lmdb, "open", refuse)
    with pytest.raises(UnavailableError, match="no address space"):
        opened(path)
