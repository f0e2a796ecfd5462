"""Lines written to control files."""

from __future__ import annotations

import pytest

from millstream.coordination.core.ninep.lines import understand
from millstream.coordination.core.ninep.refusals import NinepError


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"lock write token", b"LOCK write /a/b token"),
        (b"lock", b"LOCK /a/b"),
        (b"lock release", b"LOCK release /a/b"),
        (b"queue push x", b"QUEUE push /a/b x"),
        (b"list append x y", b"LIST append /a/b x y"),
        (b"list", b"LIST /a/b"),
        (b"delete recursive", b"DELETE /a/b recursive"),
        (b"delete /a/b/c", b"DELETE /a/b/c"),
        (b"put-cas 1:2:3 data", b"PUT /a/b data CAS 1:2:3"),
        (b"put data", b"PUT /a/b data"),
        (b"create counter unsigned name", b"CREATE counter unsigned /a/b/name"),
        (b"create counter bit 8 name", b"CREATE counter bit 8 /a/b/name"),
        (b"create binary /a/b/c 'x y'", b"CREATE binary /a/b/c x y"),
        (b"counter inc 5 wrap", b"COUNTER inc 5 /a/b wrap"),
        (b"counter get", b"COUNTER get /a/b"),
        (b"semaphore init 3", b"SEMAPHORE init 3 /a/b"),
        (b"semaphore acquire token nowait", b"SEMAPHORE acquire /a/b token nowait"),
        (b"barrier wait /a/b/c", b"BARRIER wait /a/b/c"),
        (b"move /a/c", b"MOVE /a/b /a/c"),
        (b"elect campaign me", b"ELECT campaign /a/b me"),
        (b"config get *", b"CONFIG get /a/b *"),
        (b"acl set mode 700", b"ACL set /a/b mode 700"),
    ],
)
def test_the_path_is_put_where_it_belongs(line: bytes, words: bytes) -> None:
    assert b" ".join(understand(line, b"/a/b", b"/a").words) == words


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", "BADARG"),
        (b"'", "BADARG"),
        (b"\xff", "BADARG"),
        (b"session close", "UNKNOWN_COMMAND"),
        (b"multi", "UNKNOWN_COMMAND"),
        (b"exec", "UNKNOWN_COMMAND"),
        (b"subscribe /a/b", "UNKNOWN_COMMAND"),
        (b"get /b", "NOPERM"),
        (b"get /ab", "NOPERM"),
        (b"move /b/c", "CROSS_NAMESPACE"),
        (b"create binary ..", "BADPATH"),
        (b"createnamespace /new", "NOPERM"),
        (b"deletenamespace /a", "NOPERM"),
    ],
)
def test_what_is_not_for_control_files_is_refused(line: bytes, code: str) -> None:
    with pytest.raises(NinepError) as refused:
        understand(line, b"/a/b", b"/a")
    assert refused.value.code == code


def test_whether_it_changes_something_is_known() -> None:
    assert understand(b"put x", b"/a/b", b"").is_change
    assert not understand(b"get", b"/a/b", b"").is_change
