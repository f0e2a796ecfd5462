from millstream.model.pauses import Pauses


def test_pauses_double_up_to_the_longest_until_they_begin_again() -> None:
    pauses = Pauses(0.5, 3.0)
    assert [pauses.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    pauses.restart()
    assert pauses.next() == 0.5


def test_pauses_grow_from_a_shorter_bound_of_one_call() -> None:
    pauses = Pauses(1, 100)
    assert [pauses.next(3), pauses.next(3), pauses.next(3), pauses.next()] == [1, 2, 3, 6]
