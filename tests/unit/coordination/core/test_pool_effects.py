"""`coordination.core.pool_effects`: what is more than a list of fields."""

from __future__ import annotations

from millstream.coordination.core.pool_effects import Where
from millstream.coordination.core.pool_messages import Address


def test_where_a_group_is_has_a_question_mark_for_a_primary_that_is_not_known() -> None:
    assert Where(7, 2, 5, Address("::1", 7379)).text == "7 2:5 [::1]:7379"
    assert Where(7, 2, 5, None).text == "7 2:5 ?"
