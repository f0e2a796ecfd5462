"""Rules of every suite: skips can be forbidden, Hypothesis has manners, tests may speak."""

import os
from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from support.budget import budget

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
FORBID_SKIPS = os.environ.get("MILLSTREAM_FORBID_SKIPS") == "1"

settings.register_profile(
    "millstream",
    max_examples=budget(100),
    deadline=None,  # two shared cores: a slow moment is no fault
    derandomize=FORBID_SKIPS,  # the same examples in each `make ci`; everybody else's are new
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("millstream")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under `make ci` a skipped test is a failed one: what was left out was not shown."""
    report = yield
    return _judged(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself while it is being collected."""
    report = yield
    return _judged(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have to say though they passed, those in other processes too."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "said":
                terminalreporter.write_line(str(value))


def _judged(report: Report) -> Report:
    if FORBID_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skips are forbidden here: {report.longrepr}"
    return report
