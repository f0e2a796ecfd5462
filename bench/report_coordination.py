"""The section of the coordination service in docs/benchmarks.md."""

import statistics
from collections.abc import Iterator
from typing import Any

Figures = dict[str, Any]
_NAMES = {"put": "write", "get": "read"}


def lines(found: Figures) -> Iterator[str]:
    """Yield what coordination.py measured."""
    yield (
        "A coordination group of three nodes on this machine beside etcd with three members, each "
        "write synced by a majority before it is acknowledged, reads as they are true when they "
        "are asked for; values of 256 bytes, 10,000 keys, one request at a time per client:"
    )
    yield ""
    yield "| load | server | per s | of etcd | processor us/op, all members | p50 us | p99 us |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for load, row in found["rows"].items():
        operation, _, clients = load.partition(" ")
        name = f"{_NAMES[operation]}, {clients} client{'' if clients == '1' else 's'}"
        for server, figures in row.items():
            ratio = ""
            if server != "etcd" and "etcd" in row:
                of_etcd = figures["operations_per_s"] / row["etcd"]["operations_per_s"]
                ratio = f"{of_etcd:.2f}"
            yield (
                f"| {name} | {server} | {figures['operations_per_s']:,.0f} | {ratio} | "
                f"{figures['us']:.0f} | {figures['p50_us']:,.0f} | {figures['p99_us']:,.0f} |"
            )
    yield ""
    if found.get("tree"):
        yield from _of_elements(found["tree"])
    parts = [
        f"{server} {statistics.median(times):.2f} s (from {min(times):.2f} to {max(times):.2f})"
        for server, times in found["fail_over_s"].items()
    ]
    count = len(next(iter(found["fail_over_s"].values())))
    yield (
        f"From a kill -9 of the primary to the next write that is acknowledged, the median of "
        f"{count}: {', '.join(parts)}."
    )
    yield ""


def _of_elements(rows: Figures) -> Iterator[str]:
    yield "Elements of a namespace beside registers of the same group, 64 clients:"
    yield ""
    yield "| load | of | per s | processor us/op, all members | p50 us | p99 us |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for operation, row in rows.items():
        for name, figures in row.items():
            yield (
                f"| {_NAMES.get(operation, operation)} | "
                f"{'registers' if name == 'node' else name} | "
                f"{figures['operations_per_s']:,.0f} | {figures['us']:.0f} | "
                f"{figures['p50_us']:,.0f} | {figures['p99_us']:,.0f} |"
            )
    yield ""


def of_primitives(found: Figures) -> Iterator[str]:
    """Yield what primitives.py measured."""
    yield (
        "Locks (acquire and release, each client its own) and ephemeral sequential elements of "
        "256 bytes, of three groups with three members each, in turns:"
    )
    yield ""
    yield "| load | server | per s | processor us/op, all members | p50 us | p99 us |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for load, row in found["rows"].items():
        operation, _, clients = load.partition(" ")
        for server, figures in row.items():
            yield (
                f"| {operation}, {clients} client{'' if clients == '1' else 's'} | {server} | "
                f"{figures['operations_per_s']:,.0f} | {figures['us']:.0f} | "
                f"{figures['p50_us']:,.0f} | {figures['p99_us']:,.0f} |"
            )
    yield ""
    yield (
        f"From one write until the last of {found['watchers']:,} watchers, a third of them at "
        "each member, has heard of it:"
    )
    yield ""
    yield "| server | writes/s, one after the other | p50 ms | p99 ms | processor ms/write |"
    yield "| --- | --- | --- | --- | --- |"
    for server, figures in found["watch"].items():
        yield (
            f"| {server} | {figures['operations_per_s']:,.1f} | {figures['p50_us'] / 1e3:,.1f} | "
            f"{figures['p99_us'] / 1e3:,.1f} | {figures['us'] / 1e3:,.1f} |"
        )
    yield ""
    yield (
        f"{found['sessions']:,} idle sessions of 10 s at the primary of a fresh group, each shows "
        "three times in that time that it lives; processor and memory are of all members:"
    )
    yield ""
    yield "| server | opened/s | signs of life/s | processors busy | MiB | KiB/session |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for server, figures in found["idle"].items():
        if "failed" in figures:
            yield f"| {server} | not all kept: {figures['failed']} | | | | |"
            continue
        yield (
            f"| {server} | {figures['open_per_s']:,.0f} | {figures['signs_per_s']:,.0f} | "
            f"{figures['cpu_s_per_s']:.2f} | {figures['bytes'] / 2**20:,.0f} | "
            f"{figures['bytes_per_session'] / 1024:,.1f} |"
        )
    yield ""
