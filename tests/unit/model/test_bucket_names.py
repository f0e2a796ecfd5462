import pytest

from millstream.errors import UsageError
from millstream.model.bucket_names import (
    checked_bucket_name,
    checked_memory_quota,
    checked_partition_count,
)
from millstream.model.limits import MEMORY_QUOTA_BYTES_MIN


@pytest.mark.parametrize("name", ["default", "a", "Orders-2", "a/b", "x_$()+.%-", "9", "q" * 100])
def test_good_names(name):
    assert checked_bucket_name(name) == name


@pytest.mark.parametrize("name", ["", "_users", "..", ".", "/a", "a b", "a\n", "ä", "q" * 101])
def test_bad_names(name):
    with pytest.raises(UsageError, match="bucket name"):
        checked_bucket_name(name)


@pytest.mark.parametrize("count", [1, 2, 64, 1024])
def test_good_counts(count):
    assert checked_partition_count(count) == count


@pytest.mark.parametrize("count", [0, 3, 63, 2048])
def test_bad_counts(count):
    with pytest.raises(UsageError, match="power of two"):
        checked_partition_count(count)


def test_memory_quotas():
    assert checked_memory_quota(MEMORY_QUOTA_BYTES_MIN) == MEMORY_QUOTA_BYTES_MIN
    for quota_bytes in (MEMORY_QUOTA_BYTES_MIN - 1, 0, -1):
        with pytest.raises(UsageError, match="at least"):
            checked_memory_quota(quota_bytes)
