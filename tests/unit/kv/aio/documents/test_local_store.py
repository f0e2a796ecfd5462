from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from millstream.errors import ConditionError, CorruptionError, UnavailableError, UsageError
from millstream.kv.aio.documents import local_store
from millstream.kv.aio.documents.local_store import (
    LOCAL_ID_BYTES_MAX,
    VERSIONS_MAX,
    LocalStore,
    Version,
    accept_local,
    check_local,
    thinned,
)


def store_at(path: Path, gone: frozenset[str] = frozenset()) -> LocalStore:
    return LocalStore(path / "local", lambda version: version.stamp not in gone)


async def test_documents_are_kept_over_a_restart(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.read("a") is None
    assert store.all() == []
    assert not (tmp_path / "local").exists()
    assert await store.write("b", b'{"n":1}', None, "s1") == 1
    assert await store.write("a", b"{}", None, "s1") == 1
    assert await store.write("b", b'{"n":2}', 1, "s2") == 2
    store.close()
    store = store_at(tmp_path)
    found = store.read("b")
    assert found is not None
    assert (found.rev, found.body) == (2, b'{"n":2}')
    assert [doc_id for doc_id, _ in store.all()] == ["a", "b"]
    store.close()


async def kept_in(path: Path, *, is_stopped: bool) -> Path:
    """A store that ended well, or was killed."""
    store = store_at(path)
    for number in range(20):
        await store.write(str(number), b'{"n":1}', None, "s")
    await store.write("5", None, None, "s")
    await store.set("name", b"value")
    if is_stopped:
        store.stop()
    else:
        store.close()
    return path / "local"


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("is_older", [False, True])
async def test_the_store_of_another_bucket_is_refused_until_it_is_accepted(
    tmp_path: Path, is_stopped: bool, is_older: bool
) -> None:
    """`is_older`: by a version that noted no bucket, and opened once since."""
    path = tmp_path / "local"
    store = LocalStore(path, owner="" if is_older else "one")
    await store.set("name", b"value")
    await store.write("a", b"{}", None, "s")
    store.stop() if is_stopped else store.close()
    store = LocalStore(path, owner="one", must_be_there=True)
    assert store.setting("name") == b"value"
    store.stop() if is_stopped else store.close()
    for must_be_there in (False, True):
        with pytest.raises(CorruptionError, match="it is of the bucket one") as refused:
            LocalStore(path, owner="two", must_be_there=must_be_there)
        assert refused.value.code == "local_lost"
    assert accept_local(path, "two")
    assert check_local(path, must_be_there=True, owner="two")
    store = LocalStore(path, owner="two", must_be_there=True)
    assert [doc_id for doc_id, _ in store.all()] == ["a"]
    store.close()


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "flipped", "an entry less"])
async def test_a_store_that_is_not_what_was_written_is_never_begun_anew(
    tmp_path: Path, how: str, is_stopped: bool
) -> None:
    path = await kept_in(tmp_path, is_stopped=is_stopped)
    data = path / "data.mdb"
    whole = data.read_bytes()
    if how == "missing":
        data.unlink()
    elif how == "an entry less":
        with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
            transaction.delete(b"l3")
    else:
        flipped = whole.replace(b'{"n":1}', b'["n":1}')
        data.write_bytes({"empty": b"", "cut": whole[:9000], "flipped": flipped}[how])
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"data\.mdb, the local documents") as raised:
            LocalStore(path, must_be_there=True)
        assert raised.value.code == "local_lost"
        with pytest.raises(CorruptionError, match=r"data\.mdb, the local documents"):
            check_local(path, must_be_there=True)
    is_readable = how in ("flipped", "an entry less")
    assert accept_local(path) == is_readable
    if is_readable:
        store = LocalStore(path, must_be_there=True)
        assert store.setting("name") == b"value"
        store.close()


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_store_of_an_older_program_gets_a_digest(tmp_path: Path, is_stopped: bool) -> None:
    path = await kept_in(tmp_path, is_stopped=is_stopped)
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        transaction.delete(b"d")
    (path / "sum").unlink(missing_ok=True)
    assert not check_local(path, must_be_there=False)
    with pytest.raises(CorruptionError, match="lost its digest"):
        LocalStore(path, must_be_there=True)
    LocalStore(path).close()
    store = LocalStore(path, must_be_there=True)
    assert store.setting("name") == b"value"
    store.close()


async def test_who_keeps_the_inventory_is_told_of_the_first_entry_before_it_counts(
    tmp_path: Path,
) -> None:
    told = []
    store = LocalStore(tmp_path / "local", on_begun=lambda: told.append(1))
    await store.set("a", b"1")
    await store.set("b", b"1")
    store.stop()
    assert told == [1]
    store = LocalStore(tmp_path / "local", must_be_there=True, on_begun=lambda: told.append(1))
    assert (tmp_path / "local" / "sum").exists()
    await store.set("a", b"2")
    assert not (tmp_path / "local" / "sum").exists(), "it would speak of what was there before"
    store.stop()
    assert told == [1]
    check_local(tmp_path / "local", must_be_there=True)


async def test_revisions(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    with pytest.raises(ConditionError, match="conflict"):
        await store.write("a", b"{}", 3, "s")
    await store.write("a", b"{}", 0, "s")
    with pytest.raises(ConditionError, match="conflict"):
        await store.write("a", b"{}", 7, "s")
    assert await store.write("a", b"{}", None, "s") == 1
    assert await store.write("a", None, 1, "s") == 0
    assert store.read("a") is None
    assert store.all() == []
    with pytest.raises(ConditionError, match="missing"):
        await store.write("a", None, None, "s")
    assert await store.write("a", b"{}", None, "s") == 1
    store.close()


async def test_what_speaks_of_lost_changes_counts_no_more(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    await store.write("a", b'{"n":1}', None, "old")
    await store.write("a", b'{"n":2}', 1, "lost")
    await store.write("b", b"{}", None, "lost")
    store.close()
    store = store_at(tmp_path, frozenset({"lost"}))
    found = store.read("a")
    assert found is not None
    assert found.body == b'{"n":1}'
    assert store.read("b") is None
    assert [doc_id for doc_id, _ in store.all()] == ["a"]
    assert await store.write("a", b'{"n":3}', 1, "new") == 2
    store.close()


def test_versions_are_thinned() -> None:
    versions = [Version(1, b"", "", 1)]
    for number in range(2, 40):
        versions = thinned([Version(1, b"", "", number), *versions])
        numbers = [one.number for one in versions]
        assert numbers == sorted(numbers, reverse=True)
        assert numbers[0] == number
        assert len(numbers) <= VERSIONS_MAX
    assert numbers[-1] <= 39 - 4


async def test_settings_are_apart_from_documents(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.setting("limit") is None
    await store.set("limit", b"7")
    await store.write("limit", b"{}", None, "s")
    assert store.setting("limit") == b"7"
    store.close()
    assert store_at(tmp_path).setting("limit") == b"7"


async def test_there_are_at_most_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_store, "LOCAL_DOCUMENTS_MAX", 2)
    store = store_at(tmp_path)
    await store.write("a", b"{}", None, "s")
    await store.write("b", b"{}", None, "s")
    with pytest.raises(UnavailableError, match="at most 2"):
        await store.write("c", b"{}", None, "s")
    assert await store.write("a", b"{}", 1, "s") == 2
    store.close()


async def test_what_another_node_wrote_is_kept_if_it_is_newer(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.newest("a") is None
    await store.keep("a", [Version(1, b"{}", "s", 1)])
    assert await store.write("a", b'{"n":2}', 1, "s") == 2
    newest = store.newest("a")
    assert newest == Version(2, b'{"n":2}', "s", 2)
    await store.keep("a", [Version(1, b"other", "s", 2)])
    assert store.newest("a") == newest
    await store.keep("a", [Version(0, b"", "s", 3)])
    assert store.read("a") is None, "it was deleted there"
    store.close()


async def test_what_is_kept_is_judged_when_it_is_read(tmp_path: Path) -> None:
    store = store_at(tmp_path, gone=frozenset({"lost"}))
    await store.keep("a", [Version(1, b"old", "s", 1)])
    await store.keep("a", [Version(2, b"new", "lost", 2)])
    found = store.read("a")
    assert found is not None
    assert found.body == b"old"
    store.close()


async def test_what_was_deleted_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "LOCAL_DOCUMENTS_MAX", 2)
    store = store_at(tmp_path)
    for name in ("a", "b", "c", "d"):
        await store.write(name, b"{}", None, "s")
        await store.write(name, None, 1, "s")
    assert store.all() == []
    await store.set("limit", b"7")
    for name in ("y", "z"):
        await store.write(name, b"{}", None, "s")
        if name == "y":
            monkeypatch.setattr(local_store, "LOCAL_DOCUMENTS_MAX", 3)
    assert [doc_id for doc_id, _ in store.all()] == ["y", "z"]
    assert store.setting("limit") == b"7"
    with pytest.raises(UnavailableError):
        await store.write("a", b"{}", None, "s")
    store.close()


async def test_of_what_was_deleted_it_is_known_that_it_was(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    await store.write("a", b"x" * 1000, None, "s")
    await store.write("a", None, 1, "s")
    [gone] = store._versions(b"a")
    assert (gone.rev, gone.body, gone.number) == (0, b"", 2)
    assert await store.write("a", b"{}", None, "s") == 1
    assert store._versions(b"a")[0].number == 3
    store.close()


async def test_they_have_at_most_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "LOCAL_STORE_BYTES_MAX", 400_000)
    store = store_at(tmp_path)
    big = b'{"a":"%b"}' % (b"x" * 100_000)
    for number in range(3):
        await store.write(f"d{number}", big, None, "s")
    with pytest.raises(UnavailableError, match="of 400000 bytes"):
        await store.write("d3", big, None, "s")
    with pytest.raises(UnavailableError):
        await store.write("d0", big + b"x" * 100_000, None, "s")
    await store.set("limit", b"7")  # settings are no documents
    assert await store.write("d0", None, None, "s") == 0
    assert await store.write("d3", big, None, "s") == 1
    store.close()


async def test_an_id_that_can_be_no_key_is_refused(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert await store.write("x" * LOCAL_ID_BYTES_MAX, b"{}", None, "s") == 1
    for doc_id in ("x" * (LOCAL_ID_BYTES_MAX + 1), "\ud800"):
        with pytest.raises(UsageError, match="ocument"):
            await store.write(doc_id, b"{}", None, "s")
        with pytest.raises(UsageError, match="ocument"):
            store.read(doc_id)
    store.close()
