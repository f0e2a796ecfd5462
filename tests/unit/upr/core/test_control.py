"""CONTROL keys: accepted if kept, refused otherwise, never half understood."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.upr.core.control import Settings
from millstream.wire.mcbp import Status


def test_what_clients_insist_on_is_accepted() -> None:
    settings = Settings(is_extended=False)
    for key, value in (
        (b"enable_noop", b"true"),
        (b"set_noop_interval", b"180"),
        (b"connection_buffer_size", b"20971520"),
        (b"set_priority", b"high"),
        (b"send_stream_end_on_client_close_stream", b"true"),
        (b"enable_expiry_opcode", b"true"),
        (b"supports_cursor_dropping_vulcan", b"true"),
        (b"enable_out_of_order_snapshots", b"true_with_seqno_advanced"),
        (b"backfill_order", b"round-robin"),
    ):
        assert settings.set(key, value) == Status.SUCCESS, key
    assert settings.has_noop
    assert settings.noop_interval_ms == 180_000
    assert settings.window_bytes == 20_971_520
    assert settings.sends_end_on_close
    assert settings.has_expiry_opcode


def test_a_node_tells_its_name() -> None:
    settings = Settings(is_extended=False)
    assert settings.consumer_name == ""
    for name, status in (("n" * 200, Status.SUCCESS), ("n" * 201, Status.EINVAL)):
        assert settings.set(b"consumer_name", name.encode()) == status
    assert settings.set(b"consumer_name", b"") == Status.EINVAL
    assert settings.consumer_name == "n" * 200


@pytest.mark.parametrize(
    ("text", "interval_ms"), [("0.1", 100), ("1.5", 1500), ("20", 20_000), ("2.0625", 2062)]
)
def test_intervals_may_have_decimals(text: str, interval_ms: int) -> None:
    settings = Settings(is_extended=False)
    assert settings.set(b"set_noop_interval", text.encode()) == Status.SUCCESS
    assert settings.noop_interval_ms == interval_ms


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("set_noop_interval", "0.05"),
        ("set_noop_interval", "-1"),
        ("set_noop_interval", "1.2.3"),
        ("set_noop_interval", "1.\u0663\u0663\u0663"),
        ("set_noop_interval", "1e3"),
        ("set_noop_interval", ""),
        ("set_noop_interval", "9" * 40),
        ("connection_buffer_size", "-1"),
        ("connection_buffer_size", "1.5"),
        ("connection_buffer_size", "\u0661"),
        ("connection_buffer_size", str(2**31)),
        ("enable_noop", "yes"),
        ("set_priority", "urgent"),
        ("backfill_order", "sideways"),
        ("force_value_compression", "true"),
        ("unheard_of", "true"),
        ("", ""),
    ],
)
def test_unknown_keys_and_bad_values(key: str, value: str) -> None:
    settings = Settings(is_extended=True)
    assert settings.set(key.encode(), value.encode()) == Status.EINVAL


def test_versions_of_markers() -> None:
    settings = Settings(is_extended=False)
    assert settings.marker_version == "1.0"
    for version in ("2.0", "2.2", "1.0"):
        assert settings.set(b"max_marker_version", version.encode()) == Status.SUCCESS
        assert settings.marker_version == version
    assert settings.set(b"max_marker_version", b"2.1") == Status.EINVAL


@pytest.mark.parametrize("key", [b"stream_buffer_size", b"enable_stream_id"])
def test_what_is_known_and_not_supported(key: bytes) -> None:
    assert Settings(is_extended=False).set(key, b"true") == Status.NOT_SUPPORTED


@pytest.mark.parametrize("key", [b"column_batches"])
def test_keys_of_our_own_are_known_with_the_feature_only(key: bytes) -> None:
    assert Settings(is_extended=True).set(key, b"true") == Status.NOT_SUPPORTED
    assert Settings(is_extended=False).set(key, b"true") == Status.EINVAL


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (b"durable_only", "is_durable_only"),
        (b"document_meta", "has_document_meta"),
        (b"enable_barriers", "has_barriers"),
        (b"enable_cycle_ends", "has_cycle_ends"),
    ],
)
def test_what_is_supported_of_our_own_needs_the_feature(key: bytes, name: str) -> None:
    settings = Settings(is_extended=True)
    assert settings.set(key, b"maybe") == Status.EINVAL
    assert settings.set(key, b"true") == Status.SUCCESS
    assert getattr(settings, name)
    assert settings.set(key, b"false") == Status.SUCCESS
    assert not getattr(settings, name)
    plain = Settings(is_extended=False)
    assert plain.set(key, b"true") == Status.EINVAL
    assert not getattr(plain, name)


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_any_bytes_are_answered(key: bytes, value: bytes) -> None:
    assert Settings(is_extended=True).set(key, value) in {Status.EINVAL, Status.SUCCESS}
