"""Processes of a node as their own programs, started with an order on standard input."""

import subprocess

import pytest


@pytest.fixture
def launch():
    """Start a process and give it its order; it is gone when the test ends."""
    started = []

    def run(command, order, **options):
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            **options,
        )  # fmt: skip
        started.append(process)
        process.stdin.write(order)
        process.stdin.flush()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
