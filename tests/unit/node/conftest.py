"""Settings of small nodes on free ports."""

import pytest

from millstream.node.settings import LISTENERS, Address, Settings

FREE = Address("127.0.0.1", 0)


@pytest.fixture
def make_settings(tmp_path):
    def make(**fields):
        closed = dict.fromkeys(LISTENERS)
        chosen = {"data": str(tmp_path / "node"), "kv": FREE, "http": FREE, **fields}
        return Settings(**{**closed, **chosen})

    return make
