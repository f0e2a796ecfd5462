"""What each operator is true of, as CouchDB's documentation and its matcher have it."""

import pytest

from millstream.views.core.mango.selectors import parse_selector


def matches(selector, document):
    return parse_selector(selector).matches(document)


DOCUMENT = {
    "_id": "b", "name": "Ann", "age": 30, "half": 0.5, "none": None, "yes": True, "empty": {},
    "tags": ["red", "blue", 3], "nested": {"deep": {"x": 1}, "list": [{"y": 2}, {"y": 5}]},
    "no": [], "a.b": 7, "scores": [80, 82, 90],
}  # fmt: skip


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"name": "Ann"},
        {"age": 30.0},
        {"nested": {"deep": {"x": 1}}},
        {"nested.deep.x": 1},
        {"nested.list.1.y": 5},
        {"nested.list.0": {"$eq": {"y": 2}}},
        {"a\\.b": 7},
        {"none": {"$exists": True}},
        {"none": None},
        {"other": {"$exists": False}},
        {"empty.other": {"$exists": False}},
        {"other.more": {"$exists": False}},
        {"age": {"$gt": 20, "$lt": 40}},
        {"age": {"$gt": None}},
        {"age": {"$lt": "a"}},
        {"name": {"$lt": []}},
        {"tags": {"$lt": {}}},
        {"yes": {"$lt": 0}},
        {"name": {"$gt": "an"}},
        {"name": {"$ne": "ann"}},
        {"tags": {"$in": ["blue", "green"]}},
        {"name": {"$in": ["Ann"]}},
        {"name": {"$nin": ["Bob"]}},
        {"name": {"$nin": []}},
        {"tags": {"$all": ["red", 3]}},
        {"tags": {"$all": [["red", "blue", 3]]}},
        {"tags": {"$size": 3}},
        {"no": {"$size": 0}},
        {"age": {"$mod": [7, 2]}},
        {"name": {"$regex": "^A"}},
        {"name": {"$beginsWith": "An"}},
        {"scores": {"$elemMatch": {"$gte": 80, "$lt": 81}}},
        {"scores": {"$allMatch": {"$gte": 80}}},
        {"nested.list": {"$elemMatch": {"y": 5}}},
        {"nested.list": {"$elemMatch": {"$or": [{"y": 7}, {"y": 2}]}}},
        {"nested.list": {"$not": {"$elemMatch": {"$nor": [{"y": 2}, {"y": 5}]}}}},
        {"nested": {"$keyMapMatch": {"$eq": "deep"}}},
        {"nested": {"$keyMapMatch": {"$regex": "^d"}}},
        {"half": {"$type": "number"}},
        {"none": {"$type": "null"}},
        {"yes": {"$type": "boolean"}},
        {"tags": {"$type": "array"}},
        {"empty": {"$type": "object"}},
        {"$or": [{"name": "Bob"}, {"age": 30}]},
        {"$or": []},
        {"$and": []},
        {"$nor": [{"name": "Bob"}, {"age": 31}]},
        {"age": {"$not": {"$gt": 40}}},
        {"name": {"$not": {"$regex": "^B"}}},
        {"_id": {"$gt": "B"}},
        {"_id": {"$gt": None}},
        {"_id": {"$gt": {}}},
    ],
)
def test_true_of_the_document(selector):
    assert matches(selector, DOCUMENT)


@pytest.mark.parametrize(
    "selector",
    [
        {"name": "ann"},
        {"age": "30"},
        {"name.first": {"$exists": False}},
        {"tags.7": {"$exists": False}},
        {"tags.x": {"$exists": True}},
        {"other": {"$exists": True}},
        {"other": {"$ne": 1}},
        {"other": {"$nin": [1]}},
        {"other": {"$not": {"$regex": "x"}}},
        {"other": None},
        {"other": {"$lt": {}}},
        {"a.b": 7},
        {"tags": {"$in": [["red", "blue", 3]]}},
        {"name": {"$in": []}},
        {"tags": {"$nin": ["red"]}},
        {"tags": {"$all": []}},
        {"tags": {"$all": [3.0]}},
        {"name": {"$all": ["Ann"]}},
        {"name": {"$size": 3}},
        {"half": {"$mod": [2, 0]}},
        {"yes": {"$mod": [2, 1]}},
        {"age": {"$regex": "3"}},
        {"age": {"$beginsWith": "3"}},
        {"no": {"$allMatch": {"$gt": 0}}},
        {"no": {"$elemMatch": {"$gt": 0}}},
        {"name": {"$elemMatch": {"$eq": "A"}}},
        {"empty": {"$keyMapMatch": {"$gt": None}}},
        {"tags": {"$keyMapMatch": {"$gt": None}}},
        {"tags": {"$elemMatch": {"y": {"$exists": False}}}},
        {"yes": {"$type": "number"}},
        {"age": {"$type": "integer"}},
        {"_id": {"$lt": "C"}},
        {"$and": [{}]},
    ],
)
def test_not_true_of_the_document(selector):
    assert not matches(selector, DOCUMENT)


@pytest.mark.parametrize(
    ("value", "argument"), [(7, [2, 1]), (-7, [2, -1]), (-7, [-2, -1]), (7, [-2, 1])]
)
def test_remainders_have_the_sign_of_what_is_divided(value, argument):
    assert matches({"n": {"$mod": argument}}, {"n": value})
    assert not matches({"n": {"$mod": [argument[0], -argument[1]]}}, {"n": value})


def test_values_that_no_key_can_have():
    deep = []
    for _ in range(300):
        deep = [deep]
    for operator in ("$lt", "$eq", "$ne", "$gt", "$in", "$all"):
        argument = [1] if operator in ("$in", "$all") else 1
        assert not matches({"a": {operator: argument}}, {"a": deep})
    assert matches({"a": {"$eq": 10**400}}, {"a": 10**400})
    assert matches({"a": {"$all": [10**400]}}, {"a": [10**400]})
