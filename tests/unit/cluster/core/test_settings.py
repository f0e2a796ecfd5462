"""Settings of a cluster: defaults, round trips, and what is out of range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cluster.core.settings import Settings, settings_from_json, settings_to_json
from millstream.errors import UsageError


def test_nothing_set_means_the_defaults() -> None:
    assert settings_from_json(b"{}") == Settings()
    assert (Settings().session_ttl_ms, Settings().contact_window_ms) == (1200, 500)
    assert (Settings().isolation, Settings().auto_failover_max) == ("stop", 1)


@given(st.integers(600, 600_000), st.integers(1, 100), st.booleans())
def test_settings_come_back(ttl_ms: int, most: int, is_on: bool) -> None:
    settings = Settings(session_ttl_ms=ttl_ms, auto_failover_max=most, auto_failover=is_on)
    assert settings_from_json(settings_to_json(settings)) == settings


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"session_ttl_ms": 599}, "session_ttl_ms is 599; 600 to 600000 is wanted"),
        ({"moves": 33}, "moves is 33; 1 to 32"),
        ({"isolation": "perhaps"}, "perhaps"),
        ({"unheard": 1}, "unheard"),
        (b"[", "settings of the cluster"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(content: bytes, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        settings_from_json(content)
    assert caught.value.code == "bad_cluster_setting"
