import msgspec
import pytest

from millstream.cluster.cluster_state import BucketState, NodeAt, Place, SharedDesign
from millstream.errors import RoutingError
from millstream.node.followed_bucket import FollowedBucket

PLACES = [Place("a", "h", 1, 2, [0, 2]), Place("b", "i", 3, 4, [1])]
LEARNED = BucketState(
    "b", "u1", 4, PLACES, [SharedDesign("d", "1-x", msgspec.Raw(b'{"views":{}}'))], 1, [0, 1, 2, 3]
)


async def test_all_partitions_are_answered_for_and_each_is_read_where_it_is():
    bucket = FollowedBucket(LEARNED, None)
    order = await bucket.order()
    assert (order["active"], order["passive"], order["resting"]) == ([0, 1, 2, 3], [], [])
    assert order["follows"] == [
        {"host": "h", "kv": 1, "partitions": [0, 2]},
        {"host": "i", "kv": 3, "partitions": [1]},
    ]
    assert {name: one.text for name, one in order["designs"].items()} == {"d": b'{"views":{}}'}
    (design,) = bucket.designs()
    assert bucket.design("d") == design
    assert bucket.design("none") is None
    assert (design.name, design.rev, design.body) == ("d", "1-x", b'{"views":{}}')
    assert bucket.node_for(1) == NodeAt("i", 4)
    assert bucket.node_for(3) == NodeAt("h", 2)


def test_what_was_not_heard_yet_is_not_said_to_be_missing():
    bucket = FollowedBucket(msgspec.structs.replace(LEARNED, heard=[]), None)
    assert bucket.lacks_designs()
    assert bucket.design("d").rev == "1-x"
    for asked in (lambda: bucket.design("none"), bucket.designs):
        with pytest.raises(RoutingError) as raised:
            asked()
        assert raised.value.code == "design_differs"
    assert not FollowedBucket(LEARNED, None).lacks_designs()


def test_whoever_tells_hears_of_changes_until_the_end():
    bucket, heard = FollowedBucket(LEARNED, None), []
    bucket.subscribe(lambda: heard.append(bucket.learned))
    other = BucketState("b", "u1", 4, [], [])
    bucket.take(other)
    assert heard == [other]
    assert bucket.node_for() is None
    bucket.close()
    bucket.take(LEARNED)
    assert heard == [other]
