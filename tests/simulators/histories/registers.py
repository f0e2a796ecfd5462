"""What a register may answer: `set` key value, `cas` key expected value, `get` key.

A register that was never set is the empty string; `cas` is told whether it took place.

Elsewhere: in which order things may have happened (`search`, `versions`).
"""

from __future__ import annotations

from simulators.histories.events import Operation

__all__ = ["EMPTY", "after", "awaited", "expected_before", "is_refusal", "wanted", "written"]

EMPTY = ""


def after(state: str, operation: Operation) -> str | None:
    """Return what the register is after this, None if it cannot happen with this result."""
    match operation.function, operation.argument:
        case "set", (_, value):
            return value
        case "get", (_,):
            return state if operation.is_open or operation.result == state else None
        case "cas", (_, expected, value):
            holds = state == expected
            if not operation.is_open and operation.result != holds:
                return None
            if holds:
                return value
            return None if operation.is_open else state  # in vain is as good as never
    raise ValueError(f"a register does not know {operation.function} {operation.argument}")


def written(operation: Operation) -> str | None:
    """Return what this writes if it happens; None where it is known to write nothing."""
    match operation.function:
        case "set":
            return operation.argument[1]
        case "cas" if operation.is_open or operation.result:
            return operation.argument[2]
    return None


def expected_before(operation: Operation) -> tuple[str, bool] | None:
    """Return the value it tells of, and whether the register had it, or had another, before."""
    match operation.function:
        case "get":
            return str(operation.result), True
        case "cas":
            return operation.argument[1], bool(operation.result)
    return None


def wanted(operation: Operation) -> str | None:
    """Return the value that the register must have had before this, None if that is not known."""
    told = None if operation.is_open else expected_before(operation)
    return told[0] if told is not None and told[1] else None


def awaited(operation: Operation) -> str | None:
    """Return the value for which this can happen, if there is one such value."""
    return (
        operation.argument[1]
        if operation.function == "cas" and operation.is_open
        else wanted(operation)
    )


def is_refusal(operation: Operation) -> bool:
    """Return whether this was told that the register had another value."""
    told = None if operation.is_open else expected_before(operation)
    return told is not None and not told[1]
