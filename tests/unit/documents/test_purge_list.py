"""The list of the latest purges."""

from millstream.documents import purge_list
from millstream.documents.purge_list import PURGED_INFOS_LIMIT_DEFAULT, Purged, PurgeList


def infos(*numbers):
    return tuple(Purged(f"n{number}", [f"1-{number:032x}"]) for number in numbers)


def test_what_is_kept_is_read_again():
    found = PurgeList().extended(infos(1, 2)).limited(7)
    assert PurgeList.decoded(found.encoded()) == found == (7, infos(1, 2))
    assert PurgeList.decoded(None) == (PURGED_INFOS_LIMIT_DEFAULT, ())


def test_the_oldest_purges_leave_where_there_are_too_many():
    found = PurgeList(3).extended(infos(1, 2)).extended(infos(3, 4))
    assert found.infos == infos(2, 3, 4)
    assert found.limited(1).infos == infos(4)
    assert found.limited(9).extended(infos(5)).infos == infos(2, 3, 4, 5)


def test_the_oldest_purges_leave_where_they_take_too_many_bytes(monkeypatch):
    monkeypatch.setattr(purge_list, "PURGED_INFOS_BYTES_MAX", 2 * 36)
    assert PurgeList().extended(infos(1, 2, 3)).infos == infos(2, 3)
