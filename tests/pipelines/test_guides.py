"""The programs in the guides, run in their order as they stand there.

Blocks marked `python` run in one namespace per guide, `sh` in bash. Addresses, and paths of a
reader's machine, are replaced. A query that a block leaves running has to bear what is there, and
ends before commands are run. `millstream pipeline run` and `verify` are called in this process,
for its session, and with `--once`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millstream.cli.main import application
from millstream.pipelines.sinks.sql_staging import connected
from pasted import SPARK, blocks_of, skip_without_programs
from support.node.node_process import NodeProcess, free_port
from support.pipelines.postgres import IS_INSTALLED, Postgres
from support.pipelines.spark_bucket import BucketUnderTest

pytestmark = pytest.mark.slow
BUCKETS = ("flights", "copy", "orders", "events", "carriers", "flights-again")
POSTGRES = "postgresql://etl@db.example.org:5432/warehouse"
IN_PROCESS = ("millstream pipeline run ", "millstream pipeline verify ")


class Reader:
    """Somebody who types what a guide says."""

    def __init__(self, spark: Any, node: NodeProcess, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.replaced = {
            "127.0.0.1:11210": node.ready["kv"],
            "127.0.0.1:11310": f"127.0.0.1:{free_port()}",
            "/tmp/millstream/": f"{directory}/",
            "/data/": f"{directory}/data/",
            "/lake/": f"{directory}/lake/",
            "/backups/": f"{directory}/backups/",
            '"large-orders': f'"{directory}/large-orders',
        }
        self.names: dict[str, Any] = {"__name__": "guide"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {"PATH": path, "MILLSTREAM_CONNECT": node.ready["kv"]}

    def read(self, guide: str) -> int:
        """Run the blocks of a guide; return how many there are."""
        blocks = [block for block in blocks_of(guide) if block.kind in ("python", "sh")]
        if guide == "README":
            blocks = [block for block in blocks if SPARK in block.text]
        if not IS_INSTALLED:
            blocks = [block for block in blocks if POSTGRES not in block.text]
        skip_without_programs(blocks)
        for block in blocks:
            try:
                self.run(block.kind, self.replace(block.text), f"{guide}.md", block.line)
            except BaseException as error:
                error.add_note(f"{guide}.md, line {block.line}")
                raise
        return len(blocks)

    def replace(self, text: str) -> str:
        names = "|".join(map(re.escape, self.replaced))
        return re.sub(names, lambda found: self.replaced[found[0]], text)

    def run(self, kind: str, text: str, file: str, line: int) -> None:
        if kind == "python":
            exec(compile("\n" * (line - 1) + text, file, "exec"), self.names)
            for query in self.spark.streams.active:
                query.processAllAvailable()
            return
        self.end_queries()
        if all(row.startswith(IN_PROCESS) for row in text.splitlines()):
            for row in text.splitlines():
                self.call(shlex.split(row, comments=True)[1:])
        else:
            command = ["bash", "-euo", "pipefail", "-c", text]
            subprocess.run(command, cwd=self.directory, env=os.environ | self.env, check=True)

    def end_queries(self) -> None:
        for query in self.spark.streams.active:
            query.stop()

    def call(self, words: list[str]) -> None:
        once = ["--once"] if words[1] == "run" and words[2] in ("lake", "views") else []
        result = CliRunner(env=self.env).invoke(application(words), [*words, *once])
        assert result.exit_code == 0, result.output
        if result.exception is not None:
            raise result.exception


@pytest.fixture
def reader(
    spark: Any,
    own_node: Callable[..., NodeProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Reader]:
    node = own_node(*(f"--bucket={name}:4" for name in BUCKETS), "--http", "127.0.0.1:0")
    reader = Reader(spark, node, tmp_path)
    monkeypatch.setenv("PATH", reader.env["PATH"])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # others have this session, too
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    yield reader
    reader.end_queries()


def test_the_readme(reader: Reader, capfd: pytest.CaptureFixture[str]) -> None:
    node = BucketUnderTest(reader.env["MILLSTREAM_CONNECT"], "orders")
    node.write({"a": b'{"total": 12, "city": "Wien"}', "b": b'{"total": 2, "city": "Graz"}'})
    assert reader.read("README") == 1
    shown = capfd.readouterr().out
    assert ("Wien" in shown, "Graz" in shown) == (True, False)


@pytest.fixture
def postgres() -> Iterator[str]:
    """The address of a server; nothing where it is not installed."""
    if not IS_INSTALLED:
        yield ""
        return
    server = Postgres()
    yield server.address
    server.close()


def test_the_guide_to_spark(reader: Reader, postgres: str) -> None:
    reader.replaced[POSTGRES] = postgres
    assert reader.read("spark") > 10
    if postgres:
        with connected(postgres) as database:
            ((count,),) = database.execute("SELECT count(*) FROM late_flights").fetchall()
        assert count > 0
    node = BucketUnderTest(reader.env["MILLSTREAM_CONNECT"], "events")
    with node.client() as client:
        assert client.get("o1").value["carrier"] == "AA"


def test_the_guides_to_views_the_lake_and_backups(
    reader: Reader, capfd: pytest.CaptureFixture[str]
) -> None:
    node = BucketUnderTest(reader.env["MILLSTREAM_CONNECT"], "flights")
    flights = {f"UA-{n}": b'{"carrier": "UA", "arr_delay": %d}' % n for n in range(30)}
    node.write(flights)
    assert reader.read("spark-views") >= 3
    assert str(sum(range(30))) in capfd.readouterr().out
    assert reader.read("lake") >= 4
    assert set(flights) <= {key for _, key in reader.names["rows"]}
    assert reader.read("backup") >= 4
    again = BucketUnderTest(node.address, "flights-again")
    with again.client() as client:
        assert {key: found.data for key, found in client.get_many(flights).items()} == flights
