from __future__ import annotations

import pytest

from millstream.errors import UsageError
from millstream.pipelines.change_stream.connection_options import split_options

OWN = (("ddoc", "the design document"),)


def test_options_are_divided_whatever_their_case() -> None:
    source, own = split_options(
        {"BUCKET": "b", "hosts": "h:1", "User": "ann", "password": "x", "DDOC": " d "},
        OWN,
        "f",
        {},
    )
    assert (source.bucket, source.hosts, source.user, source.password) == ("b", "h:1", "ann", "x")
    assert own == {"ddoc": "d"}
    assert (
        split_options({"bucket": "b", "user": "a"}, OWN, "f", {"MILLSTREAM_PASSWORD": "p"})[
            0
        ].password
        == "p"
    )


@pytest.mark.parametrize("name", ["startingOffsets", "nothing"])
def test_an_option_of_another_format_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown option {name} of f") as caught:
        split_options({"bucket": "b", name: ""}, OWN, "f", {})
    assert caught.value.code == "unknown_option"
    assert "ddoc: the design document" in str(caught.value)
    assert "passwordFile: " in str(caught.value)
