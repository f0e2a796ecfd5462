import msgspec
import pytest

from millstream.cluster.cluster_state import (
    BucketState,
    NodeAt,
    Place,
    SharedBucket,
    SharedDesign,
    Told,
    learn,
)
from millstream.errors import UsageError
from millstream.model.partitions import partition_of

PARTITIONS = 4
NAMES = {}
for _n in range(40):  # a design document for each partition
    NAMES.setdefault(partition_of(b"_design/d%d" % _n, PARTITIONS), f"d{_n}")
NODES = [{"name": name, "host": name, "kv": 1, "http": 2} for name in "ab"]


def a_map(rows="aabb", revision=1):
    return {"revision": revision, "nodes": NODES, "rows": [[one] for one in rows]}


def told(this="", active=range(PARTITIONS), designs=None, bucket_map=None, text="x"):
    shared = [
        SharedDesign(NAMES[p], "1-x", msgspec.Raw(b'{"text":"%b"}' % text.encode()))
        for p in (active if designs is None else designs)
    ]
    bucket = SharedBucket("b", "u1", PARTITIONS, "r1", this, bucket_map, list(active), shared)
    return Told(NodeAt(this or "alone", 5984), 11210, bucket)


def texts(learned):
    return {d.name: msgspec.json.decode(d.document)["text"] for d in learned.designs}


def test_a_node_that_is_alone_has_everything():
    learned = learn([told()])
    assert learned.places == [Place("", "alone", 11210, 5984, [0, 1, 2, 3])]
    assert learned.places[0].node == NodeAt("alone", 5984)
    assert [d.name for d in learned.designs] == sorted(NAMES.values())
    again = msgspec.json.decode(msgspec.json.encode(learned), type=BucketState)
    assert again == learned
    fewer = learn([told(designs=[2])], learned)
    assert texts(fewer) == {NAMES[2]: "x"}


def test_each_partition_is_where_the_newest_map_says():
    old, new = a_map("aaaa"), a_map("abab", 2)
    one, other = told("a", [0, 2], bucket_map=old), told("b", [1, 3], bucket_map=new)
    learned = learn([one, other])
    assert [(place.name, place.partitions) for place in learned.places] == [
        ("a", [0, 2]),
        ("b", [1, 3]),
    ]
    assert texts(learned) == dict.fromkeys(NAMES.values(), "x")
    nobody = a_map("aaaa", 3)
    nobody["rows"][1] = [None]
    learned = learn([told("a", [0, 2, 3], bucket_map=nobody)])
    assert [(place.name, place.partitions) for place in learned.places] == [("a", [0, 2, 3])]


def test_what_the_owner_does_not_say_stays_as_it_was():
    before = learn([told("a", [0, 1], bucket_map=a_map()), told("b", [2, 3], bucket_map=a_map())])
    # b has not been asked; and a node says of partitions of the other what counts for nothing
    wrong = told("a", [0, 1, 2], bucket_map=a_map(), text="new")
    learned = learn([wrong], before)
    assert texts(learned) == {
        NAMES[0]: "new", NAMES[1]: "new", NAMES[2]: "x", NAMES[3]: "x"
    }  # fmt: skip
    # the map says that b has 2, and b has not yet taken it over
    late = told("b", [3], bucket_map=a_map(), text="newer")
    learned = learn([wrong, late], before)
    assert texts(learned)[NAMES[2]] == "x"
    assert texts(learned)[NAMES[3]] == "newer"
    # a document that is deleted is no more
    assert NAMES[0] not in texts(learn([told("a", [0, 1], [1], a_map())], before))


def test_places_are_never_those_of_an_older_map():
    old, new = a_map("aaaa"), a_map("bbbb", 3)
    one = told("a", bucket_map=old, text="old")
    before = learn([one, told("b", bucket_map=new)])
    assert (before.revision, [place.name for place in before.places]) == (3, ["b"])
    for late in (one, told("a", bucket_map=a_map("abab", 2), text="old"), told(text="old")):
        assert learn([late], before) == before
    same = learn([told("b", bucket_map=new, text="new")], before)
    assert (same.revision, set(texts(same).values())) == (3, {"new"})
    kept = msgspec.json.decode(msgspec.json.encode(before), type=BucketState)
    assert [place.name for place in learn([one], kept).places] == ["b"]
    newer = learn([told("a", bucket_map=a_map("aaaa", 4))], before)
    assert (newer.revision, [place.name for place in newer.places]) == (4, ["a"])


def test_of_which_partitions_the_design_documents_were_ever_told():
    one, other = told("a", [0], bucket_map=a_map()), told("b", [2, 3], bucket_map=a_map())
    learned = learn([one])
    assert (learned.heard, learned.lacks_designs()) == ([0], True)
    assert [learned.has_heard(name) for name in (NAMES[0], NAMES[1])] == [True, False]
    learned = learn([other], learned)
    assert (learned.heard, learned.lacks_designs()) == ([0, 2, 3], True)
    learned = learn([told("a", [1], bucket_map=a_map("aabb", 2))], learned)
    assert (learned.heard, learned.lacks_designs()) == ([0, 1, 2, 3], False)
    assert not learn([told()]).lacks_designs()


def test_a_map_that_is_none_is_refused():
    with pytest.raises(UsageError):
        learn([told("a", bucket_map={"revision": 0})])


def test_addresses_are_shown_as_they_are_written():
    assert str(NodeAt("h", 1)) == "h:1"
    assert str(NodeAt("::1", 1)) == "[::1]:1"
