"""Elements have access lists, which administrators pass."""

from millstream.coordination.core.namespace.state.access_lists import ADMINS, passes
from millstream.coordination.core.namespace.state.run import Asker
from support.coordination.namespace_machine import Tree


def test_administrators_may_everything_and_so_may_all_where_there_are_no_users() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns", user=b"")
    tree.do("ACL", "SET", "/ns", "MODE", "000", "OWNER", "ann")
    assert tree.do("CREATE", "BINARY", "/ns/a") == b"+OK"
    assert passes(Asker(principal=b"eve", groups=(b"x", ADMINS)))
    assert not passes(Asker(principal=b"eve", groups=(b"x",)))


def test_a_namespace_is_made_and_deleted_by_administrators() -> None:
    tree = Tree()
    assert tree.do("CREATENAMESPACE", "/ns", user=b"eve").startswith(b"-NOPERM /ns w")
    assert tree.do("CREATENAMESPACE", "/ns", user=b"eve", groups=(ADMINS,)) == b"+OK"
    assert tree.do("DELETENAMESPACE", "/ns", user=b"eve").startswith(b"-NOPERM /ns w")
    assert tree.do("DELETENAMESPACE", "/ns", user=b"eve", groups=(ADMINS,)) == b"+OK"
