"""Selectors: normal forms, refusals, and a second interpreter that knows no normal form."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.views.core.mango.selectors import SELECTOR_DEPTH_MAX, parse_selector

# -- the other interpreter: conditions as they are written, negation as a flag

RANKS = {type(None): 0, bool: 1, int: 2, float: 2, str: 3, list: 4, dict: 5}
MISSING, BAD = object(), object()


def compare(a, b):
    """Views' order, for strings of small letters."""
    if RANKS[type(a)] != RANKS[type(b)]:
        return RANKS[type(a)] - RANKS[type(b)]
    if isinstance(a, list):
        return next(
            (c for x, y in zip(a, b, strict=False) if (c := compare(x, y))), len(a) - len(b)
        )
    if isinstance(a, dict):
        flat = [[part for pair in value.items() for part in pair] for value in (a, b)]
        return compare(*flat)
    return 0 if a is None else (a > b) - (a < b)


def exactly(a, b):
    return repr(a) == repr(b)


def lookup(value, names):
    for name in names:
        if isinstance(value, dict):
            if name not in value:
                return MISSING
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return BAD
    return value


LEAVES = {
    "$lt": lambda v, a: compare(v, a) < 0,
    "$lte": lambda v, a: compare(v, a) <= 0,
    "$eq": lambda v, a: compare(v, a) == 0,
    "$ne": lambda v, a: compare(v, a) != 0,
    "$gte": lambda v, a: compare(v, a) >= 0,
    "$gt": lambda v, a: compare(v, a) > 0,
    "$in": lambda v, a: any(
        compare(e, x) == 0 for e in (v if isinstance(v, list) else [v]) for x in a
    ),
    "$nin": lambda v, a: not LEAVES["$in"](v, a),
    "$exists": lambda v, a: a,
    "$type": lambda v, a: {
        0: "null", 1: "boolean", 2: "number", 3: "string", 4: "array", 5: "object"
    }[RANKS[type(v)]] == a,
    "$size": lambda v, a: isinstance(v, list) and len(v) == a,
    "$mod": lambda v, a: type(v) is int and v - a[0] * int(v / a[0]) == a[1],
    "$regex": lambda v, a: isinstance(v, str) and bool(re.search(a, v)),
    "$beginsWith": lambda v, a: isinstance(v, str) and v[: len(a)] == a,
    "$all": lambda v, a: isinstance(v, list) and bool(a) and (
        all(any(exactly(x, e) for e in v) for x in a)
        or (len(a) == 1 and isinstance(a[0], list) and exactly(a[0], v))
    ),
    "$elemMatch": lambda v, a: isinstance(v, list) and any(holds(a, e) for e in v),
    "$allMatch": lambda v, a: isinstance(v, list) and v != [] and all(holds(a, e) for e in v),
    "$keyMapMatch": lambda v, a: isinstance(v, dict) and any(holds(a, name) for name in v),
}  # fmt: skip


def holds(condition, document, names=(), negated=False):
    if not isinstance(condition, dict) or not condition:
        return leaf("$eq", condition, document, names, negated)
    results = []
    for name, value in condition.items():
        if name in ("$and", "$or", "$nor"):
            inner = [holds(one, document, names, negated != (name == "$nor")) for one in value]
            is_all = (name == "$and") != negated if name != "$nor" else not negated
            results.append(not inner or (all(inner) if is_all else any(inner)))
        elif name == "$not":
            results.append(holds(value, document, names, not negated))
        elif name in LEAVES:
            results.append(leaf(name, value, document, names, negated))
        else:
            results.append(holds(value, document, (*names, *name.split(".")), negated))
    return any(results) if negated else all(results)


def leaf(operator, argument, document, names, negated):
    found = lookup(document, names)
    if found is MISSING:
        return operator == "$exists" and argument == negated
    return found is not BAD and LEAVES[operator](found, argument) != negated


# -- selectors and documents by chance

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 1.0, 2.5, -1.0]),
    st.text("abc", max_size=2),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=2)
    ),
    max_leaves=5,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)
SIMPLE = st.one_of(
    st.tuples(st.sampled_from(["$lt", "$lte", "$eq", "$ne", "$gte", "$gt"]), VALUES),
    st.tuples(st.sampled_from(["$in", "$nin", "$all"]), st.lists(VALUES, max_size=3)),
    st.tuples(st.just("$exists"), st.booleans()),
    st.tuples(
        st.just("$type"),
        st.sampled_from(["null", "boolean", "number", "string", "array", "object", "other"]),
    ),
    st.tuples(st.just("$size"), st.integers(0, 3)),
    st.tuples(st.just("$mod"), st.sampled_from([[-2, 1], [2, -1], [2, 0], [3, 2]])),
    st.tuples(st.just("$regex"), st.sampled_from(["a", "^b", "c$", "^(a|b)+$", "."])),
    st.tuples(st.just("$beginsWith"), st.text("ab", max_size=2)),
).map(lambda pair: {pair[0]: pair[1]})  # fmt: skip
FIELDS = st.sampled_from(["a", "b", "c", "a.b", "a.0", "b.a.1", "c.c"])


def conditions(inner):
    """Of a value that is at hand: operators, fields below it, and several of these."""
    several = st.lists(inner, max_size=3)
    return st.one_of(
        st.tuples(FIELDS, inner).map(lambda pair: {pair[0]: pair[1]}),
        st.tuples(st.sampled_from(["$and", "$or", "$nor"]), several).map(
            lambda pair: {pair[0]: pair[1]}
        ),
        inner.filter(lambda c: c != {}).map(lambda c: {"$not": c}),
        st.tuples(st.sampled_from(["$elemMatch", "$allMatch", "$keyMapMatch"]), inner).map(
            lambda pair: {pair[0]: pair[1]}
        ),
        several.map(lambda many: {k: v for one in many for k, v in one.items()}),
    )


CONDITIONS = st.recursive(SIMPLE, conditions, max_leaves=6)
SELECTORS = st.one_of(
    st.dictionaries(FIELDS, st.one_of(VALUES, CONDITIONS), max_size=3),
    st.tuples(
        st.sampled_from(["$and", "$or", "$nor"]),
        st.lists(st.dictionaries(FIELDS, CONDITIONS, min_size=1, max_size=2), max_size=3),
    ).map(lambda pair: {pair[0]: pair[1]}),
    st.dictionaries(FIELDS, CONDITIONS, min_size=1, max_size=2).map(lambda c: {"$not": c}),
)


@given(SELECTORS, st.lists(DOCUMENTS, min_size=1, max_size=5))
def test_both_interpreters_agree(selector, documents):
    parsed = parse_selector(selector)
    for document in documents:
        expected = holds(selector, document) if selector else True
        assert parsed.matches(document) == expected, document


@given(SELECTORS, st.lists(DOCUMENTS, min_size=1, max_size=3))
def test_the_normal_form_is_a_selector_and_its_own_normal_form(selector, documents):
    parsed = parse_selector(selector)
    again = parse_selector(parsed.normal)
    assert again.normal == parsed.normal
    assert [again.matches(d) for d in documents] == [parsed.matches(d) for d in documents]


# -- cases


@pytest.mark.parametrize(
    ("selector", "normal"),
    [
        ({}, {}),
        ({"a": 1}, {"a": {"$eq": 1}}),
        ({"a": {}}, {"a": {"$eq": {}}}),
        ({"a": {"b": {"c": 1}}}, {"a.b.c": {"$eq": 1}}),
        ({"a": 1, "b": 2}, {"$and": [{"a": {"$eq": 1}}, {"b": {"$eq": 2}}]}),
        ({"a": {"$gt": 5, "$lt": 10}}, {"$and": [{"a": {"$gt": 5}}, {"a": {"$lt": 10}}]}),
        ({"$not": {"a": {"$gt": 10}}}, {"a": {"$lte": 10}}),
        (
            {"$not": {"$and": [{"a": {"$gt": 10}}, {"a": {"$lt": 5}}]}},
            {"$or": [{"a": {"$lte": 10}}, {"a": {"$gte": 5}}]},
        ),
        ({"$nor": [{"a": 1}, {"b": 2}]}, {"$and": [{"a": {"$ne": 1}}, {"b": {"$ne": 2}}]}),
        ({"a": {"$not": {"$regex": "x"}}}, {"a": {"$not": {"$regex": "x"}}}),
        ({"a": {"$not": {"$exists": True}}}, {"a": {"$exists": False}}),
        ({"a": {"$not": {"$not": {"$in": [1]}}}}, {"a": {"$in": [1]}}),
        (
            {"a": {"$elemMatch": {"$gte": 80, "$lt": 85}}},
            {"a": {"$elemMatch": {"$and": [{"": {"$gte": 80}}, {"": {"$lt": 85}}]}}},
        ),
    ],
)  # fmt: skip
def test_normal_forms(selector, normal):
    assert parse_selector(selector).normal == normal


@pytest.mark.parametrize(
    ("selector", "code", "reason"),
    [
        ([], "invalid_selector_json", "Selector must be a JSON object, not: []"),
        ("a", "invalid_selector_json", 'Selector must be a JSON object, not: "a"'),
        (None, "invalid_selector_json", "Selector must be a JSON object, not: null"),
        ({"$gt": 1}, "invalid_selector", "One or more conditions is missing a field name."),
        ({"": 1}, "invalid_selector", "One or more conditions is missing a field name."),
        ({"$not": {}}, "invalid_selector", "One or more conditions is missing a field name."),
        ({"$and": 1}, "bad_arg", "Bad argument for operator $and: 1"),
        ({"$or": {"a": 1}}, "bad_arg", 'Bad argument for operator $or: {"a":1}'),
        ({"$nor": "x"}, "bad_arg", 'Bad argument for operator $nor: "x"'),
        ({"$not": [1]}, "bad_arg", "Bad argument for operator $not: [1]"),
        ({"a": {"$in": 1}}, "bad_arg", "Bad argument for operator $in: 1"),
        ({"a": {"$nin": None}}, "bad_arg", "Bad argument for operator $nin: null"),
        ({"a": {"$all": {}}}, "bad_arg", "Bad argument for operator $all: {}"),
        ({"a": {"$exists": 1}}, "bad_arg", "Bad argument for operator $exists: 1"),
        ({"a": {"$type": 1}}, "bad_arg", "Bad argument for operator $type: 1"),
        ({"a": {"$size": -1}}, "bad_arg", "Bad argument for operator $size: -1"),
        ({"a": {"$size": True}}, "bad_arg", "Bad argument for operator $size: true"),
        ({"a": {"$mod": [2]}}, "bad_arg", "Bad argument for operator $mod: [2]"),
        ({"a": {"$mod": [0, 1]}}, "bad_arg", "Bad argument for operator $mod: [0,1]"),
        ({"a": {"$mod": [2.0, 1]}}, "bad_arg", "Bad argument for operator $mod: [2.0,1]"),
        ({"a": {"$elemMatch": 1}}, "bad_arg", "Bad argument for operator $elemMatch: 1"),
        ({"a": {"$allMatch": []}}, "bad_arg", "Bad argument for operator $allMatch: []"),
        ({"a": {"$keyMapMatch": "x"}}, "bad_arg", 'Bad argument for operator $keyMapMatch: "x"'),
        ({"a": {"$beginsWith": 1}}, "bad_arg", "Bad argument for operator $beginsWith: 1"),
        ({"a": {"$regex": 1}}, "bad_arg", "Bad argument for operator $regex: 1"),
        ({"a": {"$regex": "("}}, "bad_arg", 'Bad argument for operator $regex: "(" (missing )'),
        ({"a": {"$regex": "(?=a)"}}, "bad_arg", 'Bad argument for operator $regex: "(?=a)" ('),
        ({"a": {"$where": "x"}}, "not_supported", "Unsupported operator: $where"),
        ({"a": {"$text": "x"}}, "not_supported", "Unsupported operator: $text"),
        ({"a": {"$wrong": 1}}, "invalid_operator", "Invalid operator: $wrong"),
        ({"a..b": 1}, "invalid_field_name", "Invalid field name: 'a..b'"),
        ({"a": {"": 1}}, "invalid_field_name", "Invalid field name: 'a.'"),
    ],
)
def test_refusals(selector, code, reason):
    with pytest.raises(UsageError) as caught:
        parse_selector(selector)
    assert caught.value.code == code
    assert str(caught.value).startswith(reason)


def test_a_selector_that_is_too_deep():
    selector = {"a": 1}
    for _ in range(SELECTOR_DEPTH_MAX - 1):
        selector = {"$not": selector}
    assert parse_selector(selector).matches({"a": 2})
    with pytest.raises(UsageError, match="nested deeper"):
        parse_selector({"$not": selector})
