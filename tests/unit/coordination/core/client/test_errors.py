"""Each code is the class that says what to do."""

import pytest

from millstream.coordination.core.client.errors import (
    AbortedError,
    LockedError,
    NotHeldError,
    VersionError,
    error_of,
)
from millstream.coordination.core.client.events import (
    ErrorReply,
    Outcome,
)
from millstream.errors import OutcomeUnknownError, UnavailableError, UsageError
from millstream.vsr.core.versions import Version


@pytest.mark.parametrize(
    ("text", "kind", "details"),
    [
        ("CAS_MISMATCH 0:1:7", VersionError, {"current": Version(0, 1, 7)}),
        (
            "LOCKED /a WRITE x-1 0:1:2", LockedError,
            {"path": "/a", "mode": "WRITE", "holder": "x-1", "token": Version(0, 1, 2)},
        ),
        ("LOCKED /a", LockedError, {"path": "/a", "holder": "", "token": None}),
        ("EXECABORT 2 CHECK_FAILED no", AbortedError, {"index": 2, "reason": "CHECK_FAILED"}),
        ("EXECABORT what", AbortedError, {"index": None, "reason": ""}),
        ("FENCED it", NotHeldError, {"code": "fenced"}),
        ("BADARG x", UsageError, {"code": "badarg"}),
    ],
)  # fmt: skip
def test_what_a_node_says(text: str, kind: type, details: dict[str, object]) -> None:
    error = error_of((b"PUT", b"/a"), Outcome.ANSWERED, ErrorReply(text))
    assert type(error) is kind
    assert {name: getattr(error, name) for name in details} == details


def test_what_nobody_says() -> None:
    assert error_of((b"PUT",), Outcome.FAILED, None).code == "timeout"
    assert type(error_of((b"PUT",), Outcome.FAILED, None)) is UnavailableError
    assert isinstance(error_of((b"PUT",), Outcome.UNKNOWN, None), OutcomeUnknownError)
