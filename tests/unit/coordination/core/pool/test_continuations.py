"""`coordination.core.pool.continuations`: what waits for the disk or an answer."""

from __future__ import annotations

from millstream.coordination.core.pool.continuations import Continuations


def test_a_question_has_one_answer() -> None:
    waiting = Continuations()
    heard: list[object] = []
    ticket = waiting.next_ticket(heard.append)
    waiting.on_answer(ticket, "yes")
    waiting.on_answer(ticket, "no")
    assert heard == ["yes"]


def test_what_waits_for_a_write_goes_on_once_it_is_durable() -> None:
    waiting = Continuations()
    done: list[str] = []
    first, second = waiting.next_number(lambda: done.append("first")), waiting.next_number()
    assert first < second
    waiting.on_disk_done(first)
    waiting.on_disk_done(second)
    waiting.check_invariants()
    assert done == ["first"]


def test_a_question_that_only_reads_is_known_as_one_until_its_answer() -> None:
    waiting = Continuations()
    read = waiting.next_ticket(lambda _: None, is_read=True)
    other = waiting.next_ticket(lambda _: None)
    assert (waiting.is_read(read), waiting.is_read(other), waiting.questions) == (True, False, 2)
    waiting.on_answer(read, None)
    waiting.check_invariants()
    assert (waiting.is_read(read), waiting.questions) == (False, 1)
