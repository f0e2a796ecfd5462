from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.index.back_index import (
    back_key,
    back_value,
    first_rows_of,
    operations_of,
    split_back_key,
    split_back_value,
)
from millstream.views.core.index.header import DocumentRows
from millstream.views.core.rows import row_key, row_value

A, B = b"a\0", b"b\0"


def operations(documents, before=(), trees=2):
    asked = []

    def look_up(keys):
        asked.extend(keys)
        return dict(before)

    found = operations_of(documents, trees, look_up)
    assert asked == sorted(asked)
    return found


@given(st.integers(0, 1023), st.binary(max_size=250))
def test_keys_come_back_and_sort_by_partition(partition, doc_id):
    assert split_back_key(back_key(partition, doc_id)) == (partition, doc_id)
    assert back_key(partition, doc_id) < back_key(partition + 1, b"")


@given(st.dictionaries(st.integers(0, 99), st.sets(st.binary(max_size=9), min_size=1)))
def test_values_come_back(entry):
    found = split_back_value(back_value(entry))
    assert found == [(tree, sorted(entry[tree])) for tree in sorted(entry)]


def test_a_new_document():
    rows = [(0, B, b"2", b"x"), (1, A, b"1", b"y"), (0, A, b"1", b"z"), (0, B, b"2.0", b"w")]
    back, trees = operations([DocumentRows(3, b"d", rows)])
    assert back == [(back_key(3, b"d"), 3, back_value({0: [A, B], 1: [A]}))]
    assert trees[0] == [
        (row_key(A, b"d"), 3, row_value([(b"1", b"z")])),
        (row_key(B, b"d"), 3, row_value([(b"2.0", b"w"), (b"2", b"x")])),
    ]
    assert trees[1] == [(row_key(A, b"d"), 3, row_value([(b"1", b"y")]))]


def test_a_document_that_changed_loses_its_old_rows():
    before = {back_key(3, b"d"): back_value({0: [A, B], 1: [A]})}
    back, trees = operations([DocumentRows(3, b"d", [(0, B, b"2", b"x")])], before)
    assert back == [(back_key(3, b"d"), 3, back_value({0: [B]}))]
    assert trees[0] == [
        (row_key(A, b"d"), 3, None),
        (row_key(B, b"d"), 3, row_value([(b"2", b"x")])),
    ]
    assert trees[1] == [(row_key(A, b"d"), 3, None)]


def test_a_document_that_is_gone():
    before = {back_key(3, b"d"): back_value({1: [A]})}
    back, trees = operations([DocumentRows(3, b"d"), DocumentRows(3, b"unknown")], before)
    assert back == [(back_key(3, b"d"), 3, None)]
    assert trees == [[], [(row_key(A, b"d"), 3, None)]]


def test_the_same_keys_with_other_values_leave_the_back_index_alone():
    before = {back_key(3, b"d"): back_value({0: [A]})}
    back, trees = operations([DocumentRows(3, b"d", [(0, A, b"1", b"new")])], before)
    assert back == []
    assert trees == [[(row_key(A, b"d"), 3, row_value([(b"1", b"new")]))], []]


def test_the_last_of_two_changes_of_a_document_counts():
    documents = [DocumentRows(3, b"d", [(0, A, b"1", b"x")]), DocumentRows(3, b"d")]
    assert operations(documents) == ([], [[], []])


SHORT = st.binary(max_size=3)
ROWS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([A, B]), SHORT, SHORT), max_size=3)


@given(st.dictionaries(st.tuples(st.integers(0, 9), st.binary(max_size=3)), ROWS, max_size=9))
def test_first_rows_equal_those_of_a_change(found):
    documents = [DocumentRows(*key, rows) for key, rows in found.items()]
    back, trees = first_rows_of(documents, 2)
    assert (sorted(back), [sorted(rows) for rows in trees]) == operations(documents)
