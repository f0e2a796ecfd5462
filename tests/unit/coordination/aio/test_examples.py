"""The examples in the client's docstrings do what they show, on a real node."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from millstream.coordination import AsyncClient, BlockingClient, Client
from support.coordination.coordinators import WAIT_S
from support.coordination.namespace_node import namespace_client, one_node

MODULES = (
    "async_client", "blocking", "group_client", "held", "structured_elements", "subscription",
)  # fmt: skip
OTHERS = re.compile(r"(Args|Returns|Raises|Iterating may raise):$")
"""Begin what is indented and no example."""
BLOCK = re.compile(r"(?P<before>\S)\n\n(?P<code>(?:    .*\n|\n)+)")
THERE = ("/app/job", "/app/job/state", "/app/leader")
ADDRESS = "127.0.0.1:7379"


def examples_in(module: ModuleType) -> Iterator[Any]:
    """Yield the indented blocks of each docstring, under the name of what it is said of."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node) or "") + "\n"
            name = f"{module.__name__.rsplit('.')[-1]}.{getattr(node, 'name', 'module')}"
            blocks = [
                textwrap.dedent(found["code"]).strip()
                for found in BLOCK.finditer(text)
                if not OTHERS.search(text[: found.end("before")])
            ]
            if blocks:
                yield pytest.param("\n".join(blocks), id=name)


def all_examples() -> list[Any]:
    """Return the examples of all modules that a program uses."""
    package = "millstream.coordination.aio.client"
    modules = [importlib.import_module(f"{package}.{name}") for name in MODULES]
    return [example for module in modules for example in examples_in(module)]


def test_each_module_has_examples() -> None:
    told = {example.id.split(".")[0] for example in all_examples()}
    assert told == set(MODULES)
    assert len(all_examples()) >= 18


@pytest.mark.parametrize("example", all_examples())
async def test_an_example(example: str, tmp_path: Path) -> None:
    async with one_node(tmp_path) as address, namespace_client(address) as other:
        for path in THERE:
            await other.create(path)
        loop, said = asyncio.get_running_loop(), asyncio.Event()

        def noted(*_: object) -> None:
            loop.call_soon_threadsafe(said.set)

        names: dict[str, Any] = {
            "AsyncClient": AsyncClient, "BlockingClient": BlockingClient, "Client": Client,
            "asyncio": asyncio, "print": noted,
        }  # fmt: skip
        async with AsyncClient([address]) as client:
            names["client"] = client
            running = asyncio.ensure_future(run(example.replace(ADDRESS, address), names))
            async with asyncio.timeout(WAIT_S):
                if "subscribe(" in example:  # it goes on until what it listens to is deleted
                    while not said.is_set():
                        await other.put_attributes("/app/job", n=b"something to hear")
                    await other.delete_namespace("/app", force=True)
                await running


async def run(program: str, names: dict[str, Any]) -> None:
    """Run it here, or in a thread if it waits without `await`."""
    is_async = "await" in program or "async " in program
    head = "async def example():\n" if is_async else "def example():\n"
    exec(head + textwrap.indent(program, "    "), names)
    if is_async:
        await names["example"]()
    else:
        await asyncio.to_thread(names["example"])
