import threading

import pytest

from millstream.data_directory.inventory import (
    INVENTORY_FILE,
    LOCAL,
    LOG,
    Contents,
    Entry,
    Inventory,
    accept_hint,
)
from millstream.data_directory.small_files import sealed
from millstream.errors import CorruptionError

ENTRY = Entry("a/b", 4, "2026-01-02T03:04:05Z", frozenset({LOG}))


def test_what_is_named_is_read_back_by_others(tmp_path):
    inventory, other = Inventory(tmp_path), Inventory(tmp_path)
    assert inventory.read() == Contents()
    assert not Inventory.is_begun_in(tmp_path)
    inventory.begin(Contents("abc"))
    inventory.change(lambda contents: contents.with_bucket("u", ENTRY))
    other.note_users()
    inventory.note_coordination()
    inventory.change(lambda contents: contents.with_part("u", LOCAL).with_part("v", LOCAL))
    wanted = Contents("abc", True, True, {"u": ENTRY._replace(parts=frozenset({LOG, LOCAL}))})
    assert inventory.read() == other.read() == Inventory(tmp_path).read(is_expected=True) == wanted
    assert other.has_users()
    other.change(lambda contents: contents.without_bucket("u"))
    assert inventory.read() == wanted._replace(buckets={})
    assert not inventory.read().is_empty


def test_two_that_change_it_at_once_lose_nothing(tmp_path):
    Inventory(tmp_path).begin(Contents("abc"))

    def add(number):
        inventory = Inventory(tmp_path)
        for n in range(10):
            name = f"{number}-{n}"
            inventory.change(lambda contents, name=name: contents.with_bucket(name, ENTRY))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Inventory(tmp_path).read().buckets) == 40


def test_one_that_is_gone_or_altered_is_damage(tmp_path):
    inventory, file = Inventory(tmp_path), tmp_path / INVENTORY_FILE
    inventory.begin(Contents("abc", has_users=True))
    whole = file.read_bytes()
    for data in (b"", whole[:-1], whole.replace(b"true", b"false"), sealed("format = 1\n")):
        file.write_bytes(data)
        with pytest.raises(CorruptionError, match=rf"--accept {INVENTORY_FILE}"):
            inventory.has_users()
    file.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        Inventory(tmp_path).read(is_expected=True)
    inventory.note_coordination()  # who knew it before writes all of it again
    assert Inventory(tmp_path).read() == Contents("abc", True, True)


def test_the_way_out_is_a_command_that_a_shell_takes(tmp_path):
    directory = tmp_path / "my data"
    assert accept_hint(directory / "buckets" / "u" / "log", directory).endswith(
        f"millstream check '{directory}' --accept buckets/u/log"
    )
