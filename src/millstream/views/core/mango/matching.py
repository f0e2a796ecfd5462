"""Conditions as functions: what each operator of a selector is true of.

Invariants:
1. A function never raises for decoded JSON, and takes time in proportion to the value and the
   condition.
2. Values are compared in the order of views; those of the field `_id` in that of their bytes. What
   cannot be ordered (nested deeper than keys may be) is in no relation to anything.
3. Of a field that is not there nothing is true but `{"$exists": false}`, and that only where the
   object around it is there.
4. `$not`, `$nin` and `$ne` are no exceptions from that; an empty `$and` or `$or` is true.

Elsewhere: the normal form that these are made of (`views.core.mango.selectors`).
Source: CouchDB's Mango.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.errors import UsageError
from millstream.views.core.collation import encode_key, encode_raw_key
from millstream.views.core.mango.paths import NOT_FOUND, Unfound, at_path, parse_path
from millstream.views.core.mango.patterns import compile_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Matcher", "matcher"]

Matcher = Callable[[Any], bool]
_Encoder = Callable[[Any], bytes]
_UNORDERED: Final = (UsageError, RecursionError)
_TYPES: Final = {
    dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number",
    type(None): "null",
}  # fmt: skip


def matcher(normal: Mapping[str, Any]) -> Matcher:
    """Return a function that says whether a condition in normal form is true of a value.

    The empty condition is true of every value.
    """
    return _matcher(normal, encode_key) if normal else lambda _: True


def _matcher(normal: Mapping[str, Any], encode: _Encoder) -> Matcher:
    ((name, value),) = normal.items()
    if name in _COMPARISONS:
        return _COMPARISONS[name](value, encode)
    if name in _CONNECTIVES:
        return _CONNECTIVES[name]([_matcher(one, encode) for one in value])
    if name in _PLAIN:
        return _PLAIN[name](value)
    if name in _NESTED:
        return _NESTED[name](_matcher(value, encode))
    if not name:  # below $elemMatch and the like: of the element itself
        return _matcher(value, encode)
    return _field(name, value, encode_raw_key if name == "_id" else encode)


def _field(name: str, condition: Mapping[str, Any], encode: _Encoder) -> Matcher:
    path, inner = parse_path(name), _matcher(condition, encode)
    if condition == {"$exists": False}:
        return lambda value: at_path(value, path) is NOT_FOUND
    if len(path) == 1:
        member = path[0]

        def of_member(value: Any) -> bool:
            if type(value) is dict:
                return member in value and inner(value[member])
            found = at_path(value, path)
            return not isinstance(found, Unfound) and inner(found)

        return of_member

    def of_path(value: Any) -> bool:
        found = at_path(value, path)
        return not isinstance(found, Unfound) and inner(found)

    return of_path


# -- comparisons


def _ordered(
    is_so: Callable[[bytes, bytes], bool],
) -> Callable[[Any, _Encoder], Matcher]:
    def make(argument: Any, encode: _Encoder) -> Matcher:
        bound = _encoded(argument, encode)
        if bound is None:
            return _never

        def matches(value: Any) -> bool:
            key = _encoded(value, encode)
            return key is not None and is_so(key, bound)

        return matches

    return make


def _equal(argument: Any, encode: _Encoder) -> Matcher:
    slow, kind = _ordered(bytes.__eq__)(argument, encode), type(argument)
    if kind is not str and kind is not int:
        return slow

    def matches(value: Any) -> bool:
        return (type(value) is kind and value == argument) or slow(value)

    return matches


def _in(arguments: Sequence[Any], encode: _Encoder) -> Matcher:
    wanted = {_encoded(argument, encode) for argument in arguments} - {None}

    def matches(value: Any) -> bool:
        if type(value) is list:
            return any(_encoded(element, encode) in wanted for element in value)
        return _encoded(value, encode) in wanted

    return matches


def _not_in(arguments: Sequence[Any], encode: _Encoder) -> Matcher:
    is_in = _in(arguments, encode)
    return lambda value: not is_in(value)


def _encoded(value: Any, encode: _Encoder) -> bytes | None:
    try:
        return encode(value)
    except _UNORDERED:
        return None


def _never(_: Any) -> bool:
    return False


_COMPARISONS: Final[dict[str, Callable[[Any, _Encoder], Matcher]]] = {
    "$lt": _ordered(bytes.__lt__),
    "$lte": _ordered(bytes.__le__),
    "$eq": _equal,
    "$ne": _ordered(bytes.__ne__),
    "$gte": _ordered(bytes.__ge__),
    "$gt": _ordered(bytes.__gt__),
    "$in": _in,
    "$nin": _not_in,
}


# -- of one value


def _exists(argument: bool) -> Matcher:
    return lambda _: argument


def _type(argument: str) -> Matcher:
    return lambda value: _TYPES.get(type(value)) == argument


def _modulus(argument: Sequence[int]) -> Matcher:
    divisor, remainder = argument

    def matches(value: Any) -> bool:
        if type(value) is not int:
            return False
        # The remainder has the sign of the dividend, unlike Python's.
        found = abs(value) % abs(divisor)
        return (found if value >= 0 else -found) == remainder

    return matches


def _regex(argument: str) -> Matcher:
    is_in = compile_pattern(argument).is_in
    return lambda value: type(value) is str and is_in(value)


def _begins_with(argument: str) -> Matcher:
    return lambda value: type(value) is str and value.startswith(argument)


def _size(argument: int) -> Matcher:
    return lambda value: type(value) is list and len(value) == argument


def _all(arguments: Sequence[Any]) -> Matcher:
    wanted = {_text(argument) for argument in arguments}
    whole = _text(arguments[0]) if len(arguments) == 1 and type(arguments[0]) is list else None

    def matches(value: Any) -> bool:
        if type(value) is not list or not wanted:
            return False
        return wanted <= set(map(_text, value)) or (whole is not None and _text(value) == whole)

    return matches


def _text(value: Any) -> bytes:
    """Return what is equal for values that are exactly alike: 1 and 1.0 are not."""
    return msgspec.json.encode(value)


_PLAIN: Final[dict[str, Callable[[Any], Matcher]]] = {
    "$exists": _exists,
    "$type": _type,
    "$mod": _modulus,
    "$regex": _regex,
    "$beginsWith": _begins_with,
    "$size": _size,
    "$all": _all,
}


# -- of several conditions, and of what is inside a value


def _and(conditions: Sequence[Matcher]) -> Matcher:
    if len(conditions) == 2:
        first, second = conditions
        return lambda value: first(value) and second(value)
    return lambda value: all(condition(value) for condition in conditions)


def _or(conditions: Sequence[Matcher]) -> Matcher:
    if not conditions:
        return lambda _: True
    return lambda value: any(condition(value) for condition in conditions)


def _not(condition: Matcher) -> Matcher:
    return lambda value: not condition(value)


def _some_element(condition: Matcher) -> Matcher:
    return lambda value: type(value) is list and any(map(condition, value))


def _every_element(condition: Matcher) -> Matcher:
    return lambda value: type(value) is list and bool(value) and all(map(condition, value))


def _some_name(condition: Matcher) -> Matcher:
    return lambda value: type(value) is dict and any(map(condition, value))


_CONNECTIVES: Final[dict[str, Callable[[Sequence[Matcher]], Matcher]]] = {"$and": _and, "$or": _or}
_NESTED: Final[dict[str, Callable[[Matcher], Matcher]]] = {
    "$not": _not,
    "$elemMatch": _some_element,
    "$allMatch": _every_element,
    "$keyMapMatch": _some_name,
}
