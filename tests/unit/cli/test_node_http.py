import doctest

from millstream.cli import node_http


def test_examples() -> None:
    assert doctest.testmod(node_http).failed == 0


def test_a_name_cannot_leave_its_place_in_a_path() -> None:
    assert node_http.path_of("a", "../b") == "/a/..%2Fb"
