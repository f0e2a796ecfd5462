"""Functions that the operator registers."""

from __future__ import annotations

import pytest

import millstream.views
from millstream.errors import UsageError
from millstream.views.core.design.registered import find_registered


def test_a_function_is_found_by_its_name():
    @millstream.views.register("test.registered.one")
    def one(document):
        yield document["_id"], 1

    assert find_registered("registered:test.registered.one") is one


def test_an_unknown_name_says_what_to_do():
    with pytest.raises(UsageError, match="--python-module") as caught:
        find_registered("registered:test.nobody")
    assert caught.value.code == "unknown_function"


def test_a_name_is_needed():
    with pytest.raises(UsageError):
        millstream.views.register("")
