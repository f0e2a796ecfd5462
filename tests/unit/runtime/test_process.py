import asyncio
import gc
import os
import subprocess
import sys
import threading

import pytest

from millstream.errors import UnavailableError
from millstream.runtime.process import (
    BRIEFLY,
    DirectoryLock,
    calm_collector,
    end_in_words,
    lock_holder,
    new_event_loop,
    with_huge_pages,
)


def test_a_lock_has_one_holder(tmp_path):
    lock = DirectoryLock(tmp_path / "lock", patience_s=0)
    with pytest.raises(UnavailableError, match=f"process {os.getpid()}"):
        DirectoryLock(tmp_path / "lock", patience_s=0)
    lock.release()
    DirectoryLock(tmp_path / "lock", patience_s=0).release()


def test_the_holder_of_a_lock_is_told(tmp_path):
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    assert not path.exists()
    with DirectoryLock(path, patience_s=0):
        assert lock_holder(path) == os.getpid()
        path.write_text("1\n")
        assert lock_holder(path) == 0
    assert lock_holder(path) is None


def test_a_dying_predecessor_is_waited_for(tmp_path):
    lock = DirectoryLock(tmp_path / "lock", patience_s=0)
    timer = threading.Timer(0.1, lock.release)
    timer.start()
    DirectoryLock(tmp_path / "lock", patience_s=10).release()
    timer.join()


def test_a_collector_can_be_calmed():
    threshold = gc.get_threshold()
    try:
        calm_collector()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == BRIEFLY
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


def test_there_is_always_a_loop():
    loop = new_event_loop()()
    assert isinstance(loop, asyncio.AbstractEventLoop)
    loop.close()


CHILD = """
import os, sys
from millstream.runtime.process import die_with_parent
die_with_parent(int(sys.argv[1]), 0)
print("ready", flush=True)
import time
time.sleep(60)
"""


def test_a_child_ends_with_its_parents_pipe():
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout.readline() == b"ready\n"
    child.stdin.close()
    assert child.wait(60) == 1
    child.stdout.close()


def test_a_child_that_lost_its_parent_ends_at_once():
    child = subprocess.run([sys.executable, "-c", CHILD, "1"], capture_output=True, check=False)
    assert child.returncode == 1
    assert child.stdout == b""


def test_the_end_of_a_process_is_said_in_words():
    assert end_in_words(3) == "ended with code 3"
    assert end_in_words(-9) == "was killed by signal 9 (Killed)"


def test_a_process_may_open_all_the_files_it_may():
    program = (
        "import resource\n"
        "from millstream.runtime.process import raise_descriptor_limit\n"
        "raise_descriptor_limit()\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "assert soft == hard"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_large_blocks_go_back_to_the_system_when_they_are_freed():
    """Also after larger ones were freed, which makes glibc keep smaller ones."""
    code = (
        "from millstream.runtime.process import give_memory_back as g; g()\n"
        "def size(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "before = size()\n"
        "del (large := [bytearray(30 << 20)])[:]\n"
        "some = [bytearray(2 << 20) for _ in range(60)]\n"
        "kept = some[-1]\n"
        "del some\n"
        "print(size() - before)"
    )
    grown = int(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    )
    assert grown < 10 << 20


def test_large_copies_use_huge_pages_unless_the_operator_has_said_otherwise():
    name = "GLIBC_TUNABLES"
    assert with_huge_pages({"A": "1"}) == {"A": "1", name: "glibc.malloc.hugetlb=1"}
    others = {name: "glibc.malloc.check=1"}
    assert with_huge_pages(others)[name] == "glibc.malloc.check=1:glibc.malloc.hugetlb=1"
    assert with_huge_pages({name: "glibc.malloc.hugetlb=0"})[name] == "glibc.malloc.hugetlb=0"
