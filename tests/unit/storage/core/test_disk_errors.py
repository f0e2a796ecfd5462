import errno
import os

import pytest

from millstream.storage.core.disk_errors import disk_error, is_full


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EMFILE, "disk_full"),
        (errno.ENFILE, "disk_full"),
        (errno.EIO, "disk_failed"),
        (errno.EROFS, "disk_failed"),
        (errno.EACCES, "disk_failed"),
    ],
)
def test_only_a_lack_of_space_may_pass(number, code):
    error = OSError(number, os.strerror(number))
    found = disk_error(error, "/data/1.seg")
    assert found.code == code
    assert str(found).startswith("/data/1.seg")
    assert os.strerror(number) in str(found)
    assert is_full(error) == (code == "disk_full")
    assert disk_error(error, "", is_final=True).code == "disk_failed"
