"""Files that a connection has numbers for."""

from __future__ import annotations

import pytest

from millstream.coordination.core.ninep.fids import (
    ATTACHES_MAX,
    FIDS_MAX,
    KEPT_BYTES_MAX,
    PASSWORD_BYTES_MAX,
    Desk,
    Fid,
    Opened,
)
from millstream.coordination.core.ninep.refusals import NinepError


@pytest.fixture
def desk() -> Desk:
    return Desk(lambda: True)


def test_numbers_are_given_once_and_run_out(desk: Desk) -> None:
    for number in range(FIDS_MAX):
        desk.put(number, Fid(1, b"", b""))
    with pytest.raises(NinepError, match="TOO_MANY_FIDS"):
        desk.put(FIDS_MAX, Fid(1, b"", b""))
    with pytest.raises(NinepError, match="BADFID"):
        desk.put(0, Fid(1, b"", b""))
    assert [desk.drop(number) for number in range(FIDS_MAX)] == [0] * (FIDS_MAX - 1) + [1]


def test_attaches_run_out(desk: Desk) -> None:
    for number in range(ATTACHES_MAX):
        desk.put(number, Fid(desk.new_attach(), b"", b""))
    with pytest.raises(NinepError, match="QUOTA"):
        desk.new_attach()


def test_a_file_of_a_log_in_is_none_of_a_tree(desk: Desk) -> None:
    desk.put(1, Fid(0, b"", b""))
    with pytest.raises(NinepError, match="BADFID"):
        desk.fid(1)
    desk.add_secret(desk.fids[1], 0, b"pass")
    desk.add_secret(desk.fids[1], 4, b"word")
    with pytest.raises(NinepError, match="BADARG"):
        desk.add_secret(desk.fids[1], 0, b"again")
    with pytest.raises(NinepError, match="TOOBIG"):
        desk.add_secret(desk.fids[1], 8, bytes(PASSWORD_BYTES_MAX))
    assert desk.kept_bytes == 8
    desk.drop(1)
    assert desk.kept_bytes == 0


def test_what_is_kept_is_counted(desk: Desk) -> None:
    fid = Fid(1, b"", b"")
    fid.opened = opened = Opened(is_writable=True)
    desk.put(1, fid)
    desk.keep(opened, bytes(KEPT_BYTES_MAX - 3))
    desk.keep_names(opened, [b"abc"])
    with pytest.raises(NinepError, match="NOMEM"):
        desk.keep(opened, bytes(KEPT_BYTES_MAX))
    desk.forget_names(opened)
    desk.keep(opened, bytes(KEPT_BYTES_MAX))
    desk.drop(1)
    assert desk.kept_bytes == 0
