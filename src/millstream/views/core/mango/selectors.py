r"""Selectors: conditions on documents as CouchDB writes them, checked and brought into one form.

    {"age": {"$gt": 20, "$lt": 30}, "name": {"first": "Ann"}, "$or": [{..}, {..}]}

    selector = parse_selector(content)
    selector.matches(document)                    # decoded JSON, with `_id`

The normal form is a selector, too: every object has one member, equality is `$eq`, nested fields
are one dotted name, several conditions are `$and`, and `$not` stands only where no other operator
says the same. Planning looks at it, and `_explain` shows it.

Invariants:
1. The normal form of a normal form is itself, and both match the same documents.
2. Whatever a client sends is refused or can be matched against every document.
3. A selector is at most `SELECTOR_DEPTH_MAX` deep.

Elsewhere: what a condition is true of (`views.core.mango.matching`), fields
(`views.core.mango.paths`), which index can serve (`views.core.mango.planning`).
Source: CouchDB's Mango, its codes and reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.errors import UsageError
from millstream.views.core.mango.matching import matcher
from millstream.views.core.mango.paths import parse_path
from millstream.views.core.mango.patterns import PatternError, compile_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SELECTOR_DEPTH_MAX", "Normal", "Selector", "only", "parse_selector"]

SELECTOR_DEPTH_MAX: Final = 100
"""Objects and arrays inside each other."""

Normal = dict[str, Any]
"""A selector in normal form: an object with one member, or none."""


class Selector(NamedTuple):
    """A checked selector."""

    normal: Normal
    matches: Callable[[Any], bool]
    steps_per_byte: int = 1
    """The most steps for a byte of a document: one for each condition, and those of patterns."""


def parse_selector(content: Any) -> Selector:
    """Check a selector and make a function of it.

    Args:
        content: decoded JSON.

    Raises:
        UsageError: `invalid_selector_json`, `invalid_selector`, `bad_arg`, `bad_field`,
            `invalid_operator`, `not_supported`, `invalid_field_name`.
    """
    if not isinstance(content, dict):
        raise UsageError(
            f"Selector must be a JSON object, not: {_shown(content)}", code="invalid_selector_json"
        )
    _check_depth(content, SELECTOR_DEPTH_MAX)
    if not content:
        return Selector({}, matcher({}))
    normal = _without_negations(_with_paths(_explicit(content), ""))
    if "" in normal:
        raise UsageError(
            "One or more conditions is missing a field name.", code="invalid_selector"
        )
    return Selector(normal, matcher(normal), _steps_per_byte(normal))


def _steps_per_byte(condition: Any) -> int:
    """Return the number of conditions, and the steps of patterns."""
    if isinstance(condition, list):
        return sum(map(_steps_per_byte, condition))
    if not isinstance(condition, dict):
        return 0
    return sum(
        compile_pattern(value).steps if name == "$regex" and isinstance(value, str)
        else 1 + _steps_per_byte(value)
        for name, value in condition.items()
    )  # fmt: skip


def only(member: Normal) -> tuple[str, Any]:
    """Return name and value of the only member of an object in normal form."""
    ((name, value),) = member.items()
    return name, value


def _check_depth(value: Any, depth: int) -> None:
    if not depth:
        raise UsageError(
            f"Selector is nested deeper than {SELECTOR_DEPTH_MAX}", code="invalid_selector"
        )
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            _check_depth(inner, depth - 1)


# -- first step: all operators written out, their arguments checked


def _explicit(condition: Any) -> Normal:
    if not isinstance(condition, dict) or not condition:
        return {"$eq": condition}
    if len(condition) > 1:
        return {"$and": [_explicit({name: value}) for name, value in condition.items()]}
    name, value = only(condition)
    if not name.startswith("$"):
        return {name: _explicit(value)}
    if name in _OF_LISTS:
        return {name: [_explicit(one) for one in _checked(name, value, _is_list)]}
    if name in _OF_CONDITIONS:
        return {name: _explicit(_checked(name, value, _is_object))}
    if name in _OF_VALUES:
        return {name: _checked(name, value, _OF_VALUES[name])}
    if name in _UNSUPPORTED:
        raise UsageError(f"Unsupported operator: {name}", code="not_supported")
    raise UsageError(f"Invalid operator: {name}", code="invalid_operator")


def _checked(operator: str, value: Any, is_good: Callable[[Any], bool]) -> Any:
    if not is_good(value):
        raise _bad_argument(operator, value)
    if operator == "$regex":
        try:
            compile_pattern(value)
        except PatternError as error:
            raise _bad_argument(operator, value, f" ({error})") from error
    return value


def _bad_argument(operator: str, value: Any, why: str = "") -> UsageError:
    return UsageError(
        f"Bad argument for operator {operator}: {_shown(value)}{why}", code="bad_arg"
    )


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else text[:197] + "..."


def _is_anything(_: Any) -> bool:
    return True


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_modulus(value: Any) -> bool:
    return _is_list(value) and len(value) == 2 and all(map(_is_integer, value)) and value[0] != 0


_OF_LISTS: Final = frozenset({"$and", "$or", "$nor"})
_OF_CONDITIONS: Final = frozenset({"$not", "$elemMatch", "$allMatch", "$keyMapMatch"})
_OF_VALUES: Final[dict[str, Callable[[Any], bool]]] = {
    "$lt": _is_anything, "$lte": _is_anything, "$eq": _is_anything,
    "$ne": _is_anything, "$gte": _is_anything, "$gt": _is_anything,
    "$in": _is_list, "$nin": _is_list, "$all": _is_list,
    "$exists": _is_boolean, "$type": _is_text, "$size": _is_size, "$mod": _is_modulus,
    "$regex": _is_text, "$beginsWith": _is_text,
}  # fmt: skip
"""Operators with values, and what these may be."""
_UNSUPPORTED: Final = frozenset(
    {"$text", "$where", "$geoWithin", "$geoIntersects", "$near", "$nearSphere"}
)


# -- second step: fields at the conditions on them


def _with_paths(condition: Normal, path: str) -> Normal:
    name, value = only(condition)
    if name in _OF_LISTS:
        return {name: [_with_paths(one, path) for one in value]}
    if name == "$not":
        return {name: _with_paths(value, path)}
    if name in _OF_CONDITIONS:
        return {path: {name: _with_paths(value, "")}}
    if name.startswith("$"):
        return {path: condition}
    inner = f"{path}.{name}" if path else name
    if inner:
        parse_path(inner)
    return _with_paths(value, inner)


# -- third step: negations as far inside as they go


def _without_negations(condition: Normal) -> Normal:
    name, value = only(condition)
    if name == "$not":
        return _negated(value)
    if name == "$nor":
        return {"$and": [_negated(one) for one in value]}
    if name in _OF_LISTS:
        return {name: [_without_negations(one) for one in value]}
    if name in _OF_VALUES:
        return condition
    return {name: _without_negations(value)}


_OPPOSITES: Final = {
    "$lt": "$gte", "$gte": "$lt", "$lte": "$gt", "$gt": "$lte", "$eq": "$ne", "$ne": "$eq",
    "$in": "$nin", "$nin": "$in",
}  # fmt: skip


def _negated(condition: Normal) -> Normal:
    name, value = only(condition)
    if name == "$not":
        return _without_negations(value)
    if name == "$nor":
        return {"$or": [_without_negations(one) for one in value]}
    if name in _OF_LISTS:
        opposite = "$or" if name == "$and" else "$and"
        return {opposite: [_negated(one) for one in value]}
    if name in _OPPOSITES:
        return {_OPPOSITES[name]: value}
    if name == "$exists":
        return {name: not value}
    if name in _OF_CONDITIONS:
        return {"$not": {name: _without_negations(value)}}
    if name.startswith("$"):
        return {"$not": condition}
    return {name: _negated(value)}
