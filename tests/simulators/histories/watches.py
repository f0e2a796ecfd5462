"""What those who watch a value may hear: all that is written, once, in the order of the log.

`write` key value: its version is the write's; `begin` key subscription: the LSN behind which
everything comes; `see` key subscription: [LSN, value]. No value is written twice. A subscription
that goes on after its connection was lost is the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulators.histories.events import Operation

__all__ = ["disorders"]


def disorders(operations: Sequence[Operation]) -> Iterator[str]:
    """Yield what is wrong about one value and who watches it, a line each."""
    told = [each for each in operations if each.returned is not None]
    written: dict[int, str] = {}
    for each in told:
        if each.function == "write":
            assert isinstance(each.version, tuple)
            written[each.version[-1]] = each.argument[1]
    asked = {each.argument[1]: each for each in operations if each.function == "write"}
    seen: dict[str, list[Operation]] = {}
    for each in told:
        if each.function == "see":
            seen.setdefault(each.argument[1], []).append(each)
            lsn, value = each.result
            if written.setdefault(lsn, value) != value:
                yield f"{each}, where {written[lsn]!r} was written"
            if value not in asked or asked[value].invoked > (each.returned or 0):
                yield f"{each}, which nobody had written"
    begun = {each.argument[1]: each.result for each in told if each.function == "begin"}
    for subscription, heard in seen.items():
        yield from _gaps(begun[subscription], heard, written)


def _gaps(begun: int, heard: Sequence[Operation], written: dict[int, str]) -> Iterator[str]:
    last = begun
    for each in heard:
        if each.result[0] <= last:
            yield f"{each} comes after {last}"
        last = max(last, each.result[0])
    known = {each.result[0] for each in heard}
    for lsn in sorted(written):
        if begun < lsn <= last and lsn not in known:
            yield f"{heard[0].argument[1]} did not hear {written[lsn]!r} at {lsn}"
