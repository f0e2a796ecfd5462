"""Progress of long commands."""

from __future__ import annotations

import pytest

from millstream.cli.progress import progress_of


def test_nothing_is_shown_where_there_is_no_terminal(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    with progress_of("{task.description}") as progress:
        progress.advance(progress.add_task("work", total=2))
    assert capsysbinary.readouterr() == (b"", b"")
