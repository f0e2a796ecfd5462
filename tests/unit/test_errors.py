"""Codes and retries come from the class unless said otherwise."""

import inspect

import pytest

from millstream import errors

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, errors.MillstreamError) and found is not errors.RollbackRequiredError
]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_has_code_retry_and_message(kind: type[errors.MillstreamError]) -> None:
    error = kind("the disk is full; free some of it")
    assert str(error) == "the disk is full; free some of it"
    assert error.code == kind.default_code
    assert error.code.isidentifier()
    assert error.code == error.code.lower()
    assert error.retry in ("never", "same", "refresh_map", "backoff")


def test_code_and_retry_may_be_given() -> None:
    error = errors.UnavailableError("no", code="no_java", retry="never")
    assert (error.code, error.retry) == ("no_java", "never")
    assert errors.UnavailableError("no").retry == "backoff"
    assert errors.RoutingError("no").retry == "refresh_map"


def test_a_rollback_names_partition_and_seqno() -> None:
    error = errors.RollbackRequiredError("undo", partition_id=7, seqno=300)
    assert (error.partition_id, error.seqno, error.code) == (7, 300, "rollback_required")
    assert isinstance(error, errors.StreamError)


def test_everything_public_is_exported() -> None:
    assert set(errors.__all__) == {found.__name__ for found in CLASSES} | {
        "RollbackRequiredError",
        "Retry",
    }
