import pytest

from millstream.errors import UsageError
from millstream.model.addresses import is_key_source, parse_address


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("localhost:11210", ("localhost", 11210)),
        (" 127.0.0.1:1 ", ("127.0.0.1", 1)),
        ("db.example", ("db.example", 7)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1", ("::1", 7)),
        ("[fe80::2]", ("fe80::2", 7)),
    ],
)
def test_forms(text: str, found: tuple[str, int]) -> None:
    assert parse_address(text, default_port=7) == found


@pytest.mark.parametrize("text", ["", ":1", "a:0", "a:65536", "a:b", "a:-1", "[]:1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError) as failed:
        parse_address(text, default_port=7)
    assert failed.value.code == "bad_address"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("/etc/keys.json", True),
        ("keys.json", False),
        ("", False),
        ("https://id.example.org/keys", True),
        ("https://", False),
        ("https://[::1", False),
        ("http://id.example.org/keys", False),
        ("http://10.0.0.1/keys", False),
        ("http://127.0.0.1:8080/keys", True),
        ("http://localhost/keys", True),
        ("http://[::1]:1/keys", True),
        ("ftp://localhost/keys", False),
    ],
)
def test_where_keys_may_come_from(text: str, is_one: bool) -> None:
    assert is_key_source(text) is is_one
