import ssl

import msgspec

from millstream.access.users import NODE_USER
from millstream.upr.aio.link import Link
from millstream.views.aio.serving.bucket_order import BucketOrder, FollowedNode, sources_of
from millstream.views.aio.serving.gathering import NOBODY, NodeAccess

ORDER = BucketOrder("u" * 32, "b", 4, [0, 1, 2, 3], [], [], {})


def test_the_engine_beside_it_is_read_for_all_partitions() -> None:
    (source,) = sources_of(ORDER, "unix:/s", NOBODY)
    assert (source.address, source.partitions) == ("unix:/s", None)
    assert isinstance(source.link_to(), Link)


def test_other_nodes_are_read_for_what_is_active_there() -> None:
    follows = [FollowedNode("h", 1, [0, 2]), FollowedNode("::1", 2, [1])]
    order = msgspec.structs.replace(ORDER, follows=follows)
    again = msgspec.convert(msgspec.to_builtins(order), BucketOrder)
    tls = ssl.create_default_context()
    one, other = sources_of(again, "unix:/s", NodeAccess(NODE_USER, "a secret", tls))
    assert (one.address, one.partitions) == ("h:1", {0, 2})
    assert (other.address, other.partitions) == ("[::1]:2", {1})
    login = other.link_to()._login
    assert (login.user, login.password, login.is_encrypted) == (NODE_USER, "a secret", True)
    assert login.bucket == "b"
    (open_node, _) = sources_of(again, "unix:/s", NOBODY)
    assert open_node.link_to()._login.user is None
    assert sources_of(msgspec.structs.replace(ORDER, follows=[]), "unix:/s", NOBODY) == []
