"""What a consumer may set on its connection: the CONTROL keys.

Invariants:
1. A key is accepted only if the connection then behaves as it says; a mere permission to the
   server (out-of-order snapshots, cursor dropping, priorities) may be accepted and not used.
2. An unknown key or a bad value is EINVAL; a known key that is not supported is NOT_SUPPORTED.
3. Keys of our own are known only on a connection that was granted our HELLO feature.

Source: the released protocol's control keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.errors import UsageError
from millstream.model.limits import STREAM_NAME_BYTES_MAX
from millstream.upr.core.selecting import (
    SELECTOR_BYTES_MAX,
    Condition,
    Conditions,
    no_conditions,
)
from millstream.wire.mcbp import Status

__all__ = ["Settings"]

NOOP_INTERVAL_MS_MIN: Final = 100
NOOP_INTERVAL_MS_DEFAULT: Final = 20_000
NOOP_INTERVAL_MS_MAX: Final = 24 * 3600 * 1000
WINDOW_BYTES_MAX: Final = 2**31 - 1

_BOOLEANS: Final = frozenset({"true", "false"})
_PERMISSIONS: Final[Mapping[str, frozenset[str]]] = {
    "set_priority": frozenset({"high", "medium", "low"}),
    "supports_cursor_dropping": _BOOLEANS,
    "supports_cursor_dropping_vulcan": _BOOLEANS,
    "enable_out_of_order_snapshots": _BOOLEANS | {"true_with_seqno_advanced"},
    "backfill_order": frozenset({"round-robin", "sequential"}),
}
_UNSUPPORTED: Final = frozenset(
    {
        "stream_buffer_size",
        "enable_stream_id",
        "enable_sync_writes",
        "include_deleted_user_xattrs",
        "v7_dcp_status_codes",
        "flatbuffers_system_events",
        "change_streams",
        "supports_hifi_MFU",
        "cache_transfer",
    }
)
_MARKER_VERSIONS: Final = frozenset({"1.0", "2.0", "2.2"})
_OWN_UNSUPPORTED: Final = frozenset({"column_batches"})


class Settings:
    """The settings of one connection, changed by CONTROL.

    Args:
        is_extended: keys of our own are known.
        conditions: makes a condition on documents of its text.
    """

    __slots__ = (
        "_conditions",
        "condition",
        "consumer_name",
        "has_barriers",
        "has_cycle_ends",
        "has_document_meta",
        "has_expiry_opcode",
        "has_noop",
        "is_durable_only",
        "is_extended",
        "marker_version",
        "noop_interval_ms",
        "sends_end_on_close",
        "window_bytes",
    )

    def __init__(self, *, is_extended: bool, conditions: Conditions = no_conditions) -> None:
        self.is_extended = is_extended
        self._conditions = conditions
        self.condition: Condition | None = None
        """Streams asked for from here on leave out documents for which it is false."""
        self.window_bytes = 0
        """Flow control window; 0: no flow control."""
        self.consumer_name = ""
        """The node whose copies are fed by the streams that are requested after this; empty: none.
        """
        self.marker_version = "1.0"
        """The marker version of the streams that are requested after this."""
        self.has_noop = False
        self.noop_interval_ms = NOOP_INTERVAL_MS_DEFAULT
        self.sends_end_on_close = False
        self.has_expiry_opcode = False
        self.has_barriers = False
        self.has_cycle_ends = False
        self.has_document_meta = False
        """Streams asked for from here on send each change's lineage and sidecar before it."""
        self.is_durable_only = False
        """Streams asked for from here on send nothing that a stop of the machine could undo."""

    def set(self, key: bytes, value: bytes) -> Status:
        """Apply one CONTROL and return the status to answer with."""
        try:
            return self._set(key.decode(), value.decode())
        except ValueError:
            return Status.EINVAL

    def _set(self, name: str, text: str) -> Status:
        if name in _UNSUPPORTED or (self.is_extended and name in _OWN_UNSUPPORTED):
            return Status.NOT_SUPPORTED
        if name in _PERMISSIONS:
            return Status.SUCCESS if text in _PERMISSIONS[name] else Status.EINVAL
        if name == "connection_buffer_size":
            self.window_bytes = _whole_number(text, WINDOW_BYTES_MAX)
        elif name == "set_noop_interval":
            self.noop_interval_ms = _interval_ms(text)
        elif name == "consumer_name":
            self.consumer_name = _name(text)
        elif name == "max_marker_version":
            self.marker_version = _one_of(text, _MARKER_VERSIONS)
        elif name == "enable_noop":
            self.has_noop = _boolean(text)
        elif name == "send_stream_end_on_client_close_stream":
            self.sends_end_on_close = self.sends_end_on_close or _boolean(text)
        elif name == "enable_expiry_opcode":
            self.has_expiry_opcode = _boolean(text)
        elif not (self.is_extended and self._set_own(name, text)):
            return Status.EINVAL
        return Status.SUCCESS

    def _set_own(self, name: str, text: str) -> bool:
        """Apply a key of our own. False: the key is not one of them."""
        match name:
            case "durable_only":
                self.is_durable_only = _boolean(text)
            case "document_meta":
                self.has_document_meta = _boolean(text)
            case "selector":
                self.condition = self._condition(text.encode())
            case "enable_barriers":
                self.has_barriers = _boolean(text)
            case "enable_cycle_ends":
                self.has_cycle_ends = _boolean(text)
            case _:
                return False
        return True

    def _condition(self, text: bytes) -> Condition:
        if len(text) > SELECTOR_BYTES_MAX:
            raise ValueError(f"a selector of {len(text)} bytes")
        try:
            return self._conditions(text)
        except UsageError as error:
            raise ValueError(str(error)) from error


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(f"not true or false: {text!r}")
    return text == "true"


def _one_of(text: str, known: frozenset[str]) -> str:
    if text not in known:
        raise ValueError(f"none of {sorted(known)}: {text!r}")
    return text


def _name(text: str) -> str:
    if not 1 <= len(text.encode()) <= STREAM_NAME_BYTES_MAX:
        raise ValueError(f"a name of {len(text.encode())} bytes")
    return text


def _whole_number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        raise ValueError(f"not a whole number: {text!r}")
    number = int(text)
    if number > most:
        raise ValueError(f"{number} is above {most}")
    return number


def _interval_ms(text: str) -> int:
    """Return an interval given in seconds, whole or decimal, as milliseconds."""
    whole, _, fraction = text.partition(".")
    thousandths = (fraction + "000")[:3]
    interval_ms = _whole_number(whole, NOOP_INTERVAL_MS_MAX) * 1000
    interval_ms += _whole_number(thousandths, 999)
    if fraction and not (fraction.isascii() and fraction.isdigit()):
        raise ValueError(f"not a number of seconds: {text!r}")
    if not NOOP_INTERVAL_MS_MIN <= interval_ms <= NOOP_INTERVAL_MS_MAX:
        raise ValueError(f"interval of {interval_ms} ms")
    return interval_ms
