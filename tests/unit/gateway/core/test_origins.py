import pytest

from millstream.errors import AccessError
from millstream.gateway.core.origins import refuse_foreign_page

HOSTS = frozenset({"127.0.0.1", "db.example"})


@pytest.mark.parametrize(
    ("method", "host", "origin", "has_users"),
    [
        ("GET", "127.0.0.1:5984", None, False),
        ("GET", "localhost:5984", None, False),
        ("GET", "[::1]:5984", None, False),
        ("GET", "DB.example", None, False),
        ("GET", "", None, False),
        ("GET", "proxy.example", "http://other", True),
        ("POST", "127.0.0.1:5984", None, False),
        ("POST", "127.0.0.1:5984", "http://127.0.0.1:5984", False),
        ("PUT", "proxy.example", "https://proxy.example", True),
    ],
)
def test_own_pages_and_programs_may(method, host, origin, has_users):
    refuse_foreign_page(method, host, origin, hosts=HOSTS, has_users=has_users)


@pytest.mark.parametrize(
    ("method", "host", "origin", "has_users"),
    [
        ("GET", "evil.example:5984", None, False),
        ("GET", "[nonsense", None, False),
        ("POST", "127.0.0.1:5984", "http://evil.example", False),
        ("POST", "127.0.0.1:5984", "http://127.0.0.1:80", False),
        ("POST", "127.0.0.1:5984", "null", True),
        ("DELETE", "db.example", "http://evil.example", True),
    ],
)
def test_foreign_pages_may_not(method, host, origin, has_users):
    with pytest.raises(AccessError):
        refuse_foreign_page(method, host, origin, hosts=HOSTS, has_users=has_users)
