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


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UsageError("x"), 400),
        (errors.UsageError("x", code="too_large"), 413),
        (errors.RemoteProtocolError("x"), 400),
        (errors.AccessError("x"), 403),
        (errors.AccessError("x", code="unauthorized"), 401),
        (errors.RoutingError("x"), 503),
        (errors.RoutingError("x", code="unknown_vbucket"), 404),
        (errors.ConditionError("x"), 409),
        (errors.ConditionError("x", code="bucket_exists"), 412),
        (errors.UnavailableError("x"), 503),
        (errors.CorruptionError("x"), 500),
        (errors.MillstreamError("x"), 500),
    ],
)
def test_every_error_has_a_status(error: errors.MillstreamError, status: int) -> None:
    assert errors.http_status_of(error) == status


@pytest.mark.parametrize(
    "kind",
    [
        errors.UsageError, errors.ConditionError, errors.AccessError, errors.UnavailableError,
    ],
)  # fmt: skip
def test_the_status_of_an_error_stands_for_its_class(kind: type[errors.MillstreamError]) -> None:
    assert errors.kind_of_http_status(errors.http_status_of(kind("no"))) is kind


def test_other_statuses_have_a_class_too() -> None:
    found = {status: errors.kind_of_http_status(status) for status in (302, 401, 413, 418, 500)}
    assert found == {
        302: errors.UsageError, 401: errors.AccessError, 413: errors.UsageError,
        418: errors.UnavailableError, 500: errors.UnavailableError,
    }  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_is_known_by_its_name(kind: type[errors.MillstreamError]) -> None:
    assert errors.kind_named(errors.name_of_kind(kind("no"))) is kind


def test_what_other_processes_do_not_know_is_named_by_the_class_above() -> None:
    class LocalError(errors.ConditionError):
        pass

    rollback = errors.RollbackRequiredError("undo", partition_id=7, seqno=300)
    assert errors.name_of_kind(LocalError("no")) == "ConditionError"
    assert errors.name_of_kind(rollback) == "StreamError"
    assert errors.kind_named("RollbackRequiredError") is errors.StreamError
    assert errors.kind_named("NoSuchError") is None


def test_everything_public_is_exported() -> None:
    assert set(errors.__all__) == {found.__name__ for found in CLASSES} | {
        "RollbackRequiredError", "Retry",
        "http_status_of", "kind_named", "kind_of_http_status", "name_of_kind",
    }  # fmt: skip
