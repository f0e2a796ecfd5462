"""What runs ask for."""

from millstream.replication.core.asking import Feed, Info, feed_of
from millstream.replication.core.jobs import parse_job

ENDS = {"source": "a", "target": "b"}


def test_a_feed_is_that_of_the_job():
    assert feed_of(parse_job(ENDS)) == Feed()
    assert feed_of(parse_job({**ENDS, "doc_ids": ["b", "a"]})).doc_ids == ("a", "b")
    assert feed_of(parse_job({**ENDS, "winning_revs_only": True})).style == "main_only"


def test_a_database_is_another_one_once_writes_may_be_lost():
    info = Info("u", branches=(1, 2))
    assert info._replace(update_seq=5).incarnation == info.incarnation
    assert info._replace(branches=(1, 3)).incarnation != info.incarnation
    assert info._replace(instance_start_time="1").incarnation != info.incarnation
