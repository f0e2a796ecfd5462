"""What may become of the items of a queue: none is lost, and none is done twice.

`push` key value: its id; `take` key session: a list of [id, value, deliveries]; `ack` key session
id deliveries: whether it was done by this; `nack` the same: whether it was given back; `rest` key:
the values that are left when all is over. No value is pushed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulators.histories.events import Operation

__all__ = ["disorders"]


def disorders(operations: Sequence[Operation]) -> Iterator[str]:
    """Yield what is wrong about one queue, a line each."""
    told = [each for each in operations if each.returned is not None]
    yield from _done_twice(told)
    yield from _out_of_nothing(operations, told)
    yield from _given_to_two(told)
    for each in told:
        if each.function == "rest":
            yield from _lost(operations, told, each)


def _done_twice(told: Sequence[Operation]) -> Iterator[str]:
    done: dict[str, Operation] = {}
    for each in told:
        if each.function == "ack" and each.result and done.setdefault(_id(each), each) is not each:
            yield f"{each} did what was done: {done[_id(each)]}"
    for each in told:
        for number, value, _ in each.result if each.function == "take" else ():
            ended = done.get(number)
            if ended is not None and (ended.returned or 0) < each.invoked:
                yield f"{each} was given {value}, which was done: {ended}"


def _out_of_nothing(operations: Sequence[Operation], told: Sequence[Operation]) -> Iterator[str]:
    pushed = {each.argument[1]: each for each in operations if each.function == "push"}
    for each in told:
        for number, value, _ in each.result if each.function == "take" else ():
            came = pushed.get(value)
            if came is None or came.invoked > (each.returned or 0):
                yield f"{each} was given {value}, which nobody had pushed"
            elif not came.is_open and came.result != number:
                yield f"{each} was given {value} under another id: {came}"


def _given_to_two(told: Sequence[Operation]) -> Iterator[str]:
    """Each delivery is to one session, and only the last one can end it."""
    to: dict[tuple[str, int], Operation] = {}
    last: dict[str, int] = {}
    for each in told:
        for number, _, deliveries in each.result if each.function == "take" else ():
            if to.setdefault((number, deliveries), each) is not each:
                yield f"{each} was given what was given to {to[number, deliveries]}"
            last[number] = max(last.get(number, 0), deliveries)
    for each in told:
        if each.function == "ack" and each.result and int(each.argument[3]) < last[_id(each)]:
            yield f"{each}, which was delivered to another since: {to[_id(each), last[_id(each)]]}"


def _lost(
    operations: Sequence[Operation], told: Sequence[Operation], rest: Operation
) -> Iterator[str]:
    acked = {_id(each) for each in operations if each.function == "ack" and _may_be_done(each)}
    for each in told:
        if each.function != "push" or each.invoked > rest.invoked:
            continue
        if each.result not in acked and each.argument[1] not in rest.result:
            yield f"{each} is lost"
    done = {_id(each) for each in told if each.function == "ack" and each.result}
    ids = {each.argument[1]: each.result for each in told if each.function == "push"}
    for value in rest.result:
        if ids.get(value) in done:
            yield f"{value} was done and is still there"


def _may_be_done(operation: Operation) -> bool:
    return operation.is_open or bool(operation.result)


def _id(operation: Operation) -> str:
    return operation.argument[2]
