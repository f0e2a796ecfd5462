import pytest

from millstream.cluster.core.identity import (
    CLUSTER_NAME,
    CLUSTER_NAME_CHARS_MAX,
    checked_cluster_name,
)
from millstream.errors import UsageError


@pytest.mark.parametrize("name", [CLUSTER_NAME, "a", "9-a_b.c", "a" * CLUSTER_NAME_CHARS_MAX])
def test_a_cluster_can_have_this_name(name: str) -> None:
    assert checked_cluster_name(name) == name


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "-a", "a\n", "é", "a" * 65])
def test_a_name_that_would_have_to_be_quoted_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="letters, digits"):
        checked_cluster_name(name)
