from collections.abc import Callable
from typing import Any

SPECIFICATION: str

def bind_receive(
    session: type,
    python: Callable[..., Any],
    partition: type,
    queue: type,
    block: type,
    entry: type,
    residents: type,
    memory: type,
    requests_max: int,
    key_bytes_max: int,
    value_bytes_max: int,
    entry_bytes: int,
    deferred_max: int,
    deferred_bytes_max: int,
) -> Callable[..., Any]: ...
def bind_freeze(
    queue: type, python: Callable[..., Any], block: type, entry: type, frozen: type
) -> Callable[..., Any]: ...
def bind_unlogged_keys(
    block: type, python: Callable[..., Any], entry: type
) -> Callable[..., Any]: ...
def bind_keys_within(owner: object, python: Callable[..., Any]) -> Callable[..., Any]: ...
def bind_encode_many(records: object, python: Callable[..., Any]) -> Callable[..., Any]: ...
def bind_cut_frames(records: object, python: Callable[..., Any]) -> Callable[..., Any]: ...
def bind_decode_entries(
    entries: object,
    python: Callable[..., Any],
    entry: type,
    header: type,
    kinds: dict[int, Any],
    body_bytes_max: int,
) -> Callable[..., Any]: ...
def bind_check_chain(
    entries: object, python: Callable[..., Any], link: type
) -> Callable[..., Any]: ...
def bind_encode_log(durable: object, python: Callable[..., Any]) -> Callable[..., Any]: ...
def bind_chain(entries: object, python: Callable[..., Any], body: type) -> Callable[..., Any]: ...
def bind_decode_body(
    entries: object, python: Callable[..., Any], body: type
) -> Callable[..., Any]: ...
def bind_SortedMap(owner: object, python: type, cut: type) -> type: ...
def bind_Table(owner: object, python: type) -> type: ...
