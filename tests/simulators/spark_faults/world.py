"""Does what a schedule says, with real nodes and a real Spark, and compares.

Invariants:
1. After each round every sink equals what the source has, and so does a copy that is read anew;
   what the source has is asked of its node, key by key.
2. A pipeline is started again only after it, its driver or a node failed, from its checkpoint;
   what fails without a cause (see `causes`), or does not stop when it is told to, is wrong.
3. What was to go wrong counts only where it did: `Outcome` says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import secrets
import select
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.client.databases import Database
from millstream.client.http import http_of
from millstream.errors import MillstreamError
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from millstream.pipelines.source import MillstreamDataSource
from simulators.spark_faults.causes import Causes
from simulators.spark_faults.nodes import TIMEOUT_S, Bucket, Nodes
from simulators.spark_faults.points import Points
from simulators.spark_faults.schedule import KEYS, Fault, Round, Schedule
from support.node.node_process import free_port
from support.node.waiting import until
from support.pipelines.spark_cluster import Processes
from support.pipelines.spark_rows import rows_of

NAMES = [f"k{n}" for n in range(KEYS)]
DESIGN = {"engine": "spark", "views": {"v": {"map": "d => emit(d.g, d.n)", "reduce": "_sum"}}}
GROUPS = 7
SETTLE_S = 150.0
"""The longest that a round takes until all is level, restarts of everything in it."""
RESTARTS_MAX = 8
DRIVER_DIED = "the driver died"
VIEW_MS = 4_000
ERROR_CHARS_MAX = 1_500
HERE = Path(__file__).parent


SPREAD = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.task.duration.threshold": "1s",  # where a stage is one task
}
"""Executors of their own, and a task that takes longer than another one runs a second time."""


class DriverDied(Exception):
    """The driver is gone."""


class Difference(AssertionError):
    """Something is not what the source has."""


class Driver:
    """The process of `spark_faults.driver`; it has a group of its own."""

    def __init__(self, folder: Path, points: Points, settings: tuple[str, ...]) -> None:
        self.log_path = folder / "driver.log"
        env = {
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **os.environ,
            "PYTHONPATH": paths(), "MILLSTREAM_SPARK_FAULTS": str(points.folder),
        }  # fmt: skip
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "simulators.spark_faults.driver", str(folder), *settings],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env,
                start_new_session=True,
            )  # fmt: skip
        self.is_ready = False

    def ask(self, meanwhile: Callable[[], None], **said: Any) -> str:
        """Have it do something; return the error, or nothing."""
        if not self.is_ready:
            self._answer(meanwhile)
            self.is_ready = True
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(said).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise DriverDied from error
        return str(self._answer(meanwhile).get("error", ""))

    def _answer(self, meanwhile: Callable[[], None]) -> dict[str, Any]:
        assert self.process.stdout is not None
        until = time.monotonic() + SETTLE_S
        while not select.select([self.process.stdout], [], [], 0.1)[0]:
            assert time.monotonic() < until, f"no answer of the driver: {self.end_of_log()}"
            meanwhile()
        line = self.process.stdout.readline()
        if not line:
            raise DriverDied
        found: dict[str, Any] = json.loads(line)
        return found

    def end_of_log(self) -> str:
        return self.log_path.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def paths() -> str:
    """Return what Python processes of Spark have on their path."""
    return os.pathsep.join([str(HERE / "inside"), str(HERE.parents[1]), *sys.path])


class Executors:
    """A master and two workers; to Spark they are two machines, else nothing runs twice."""

    def __init__(self, folder: Path, points: Points) -> None:
        self.processes = Processes(folder)
        try:
            self._start(folder, points)
        except BaseException:  # also when interrupted: half of them are none
            self.close()
            raise

    def _start(self, folder: Path, points: Points) -> None:
        env = {"PYTHONPATH": paths(), "MILLSTREAM_SPARK_FAULTS": str(points.folder)}
        start = self.processes.program("bin/spark-class")
        kind = "org.apache.spark.deploy"
        self.address = f"spark://127.0.0.1:{free_port()}"
        port = self.address.rpartition(":")[2]
        words = ["--host", "127.0.0.1", "--port", port, "--webui-port", "0"]
        self.processes.start("master", [start, f"{kind}.master.Master", *words])
        self.processes.said("master", "(I have been elected leader)")
        for host in ("127.0.0.1", "127.0.0.2"):
            words = ["--host", host, "-c", "1", "-m", "600m", "--webui-port", "0"]
            words += ["--work-dir", str(folder / "executors"), self.address]
            name = f"worker-{host}"
            env["SPARK_LOCAL_IP"] = host
            self.processes.start(name, [start, f"{kind}.worker.Worker", *words], **env)
            self.processes.said(name, "(Successfully registered with master)")

    def close(self) -> None:
        self.processes.__exit__()


@dataclasses.dataclass
class Outcome:
    """What really happened in a schedule."""

    schedule: Schedule
    seconds: float = 0.0
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: str = ""
    is_difference: bool = False
    """Whether it is wrong because a sink differs, and not because something failed or hung."""

    @property
    def counted(self) -> bool:
        """Whether what the schedule is made for took effect."""
        if self.schedule.family == "rollbacks":
            return self.counts["rows lost that sinks had"] > 0
        return any(name.startswith("fault ") for name in self.counts)


class World:
    """Nodes and a driver for many schedules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "points").mkdir()
        self.points = Points(folder / "points")
        self.nodes = Nodes(folder)
        self.driver: Driver | None = None
        self.driver_settings: tuple[str, ...] = ()
        self.executors: Executors | None = None

    def close(self) -> None:
        self.end_spark()
        self.nodes.close()

    def end_spark(self) -> None:
        """End driver and executors; the next schedule has others."""
        if self.driver is not None:
            self.bury()
        if self.executors is not None:
            self.executors.close()
            self.executors = None

    def settings(self, *, is_spread: bool) -> tuple[str, ...]:
        """Return the settings of Spark; with executors of their own, start these."""
        if not is_spread:
            return ()
        if self.executors is None:
            self.executors = Executors(self.folder, self.points)
        given = SPREAD | {"spark.master": self.executors.address}
        return tuple(f"{name}={value}" for name, value in given.items())

    def run(self, schedule: Schedule) -> Outcome:
        """Play a schedule; what was wrong is told in the outcome."""
        outcome = Outcome(schedule)
        began = time.monotonic()
        self.points.clear()
        play = Play(self, schedule, outcome)
        try:
            play.rounds()
        except Exception as error:  # noqa: BLE001 - told, with the seed
            outcome.wrong = f"{type(error).__name__}: {error}"
            outcome.is_difference = isinstance(error, Difference)
        finally:
            self.end(play, outcome)
        outcome.seconds = time.monotonic() - began
        return outcome

    def end(self, play: Play, outcome: Outcome) -> None:
        """End a schedule; what is wrong only then counts, too."""
        try:
            play.end()
        except Exception as error:  # noqa: BLE001 - told, with the seed
            outcome.wrong = outcome.wrong or f"at the end: {type(error).__name__}: {error}"
        if outcome.wrong and self.driver is not None:
            self.bury()  # the next schedule begins with nothing of this one

    def running(self, settings: tuple[str, ...]) -> Driver:
        """Return a driver with these settings."""
        if self.driver is not None and self.driver_settings != settings:
            self.driver.kill()
            self.driver = None
        if self.driver is None:
            self.driver, self.driver_settings = (
                Driver(self.folder, self.points, settings),
                settings,
            )
        return self.driver

    def bury(self) -> None:
        """Wait for the end of a driver that died."""
        assert self.driver is not None
        self.driver.kill()
        self.driver = None


class Play:
    """One schedule."""

    def __init__(self, world: World, schedule: Schedule, outcome: Outcome) -> None:
        self.world, self.nodes, self.points = world, world.nodes, world.points
        self.schedule, self.counts = schedule, outcome.counts
        self.rng = random.Random(schedule.seed)
        self.folder = world.folder / f"{schedule.family}-{schedule.seed}"
        shutil.rmtree(self.folder, ignore_errors=True)
        name = f"{schedule.family[0]}{schedule.seed}-{secrets.token_hex(3)}"
        self.causes = Causes(world.points)
        self.deaths = Counter(self.nodes.deaths)
        """What was found dead before."""
        self.nodes.look_after()
        self.source = Bucket(
            self.nodes, name, "a", secrets.token_hex(16) if schedule.is_pair else ""
        )
        self.copy = Bucket(self.nodes, f"{name}-copy", "other")
        self.started: set[str] = set()
        self.number = 0
        if "view" in schedule.sinks:
            with self.source.client() as client:
                http = http_of(client, user=None, password="", tls=None, timeout_s=TIMEOUT_S)
            Database(http, name).put("_design/d", DESIGN)

    def end(self) -> None:
        """Stop what runs, and remove it."""
        for name in [*self.nodes.down]:
            self.nodes.start(name)
        try:
            for sink in sorted(self.started):
                self.stop(sink)
            self.check_nodes()
        finally:
            self.nodes.look_after()
            for bucket in (self.source, self.copy):
                bucket.drop()
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- rounds

    def rounds(self) -> None:
        for number, each in enumerate(self.schedule.rounds):
            armed = self.arm(number, each.fault) if each.fault is not None else None
            self.write(each.durable, is_durable=True)
            if each.loss == "failover":
                self.causes.shaken()
                self.nodes.kill(self.passive)
            self.write(each.lossy)
            self.settle()
            if armed is not None:
                self.judge(number, armed)
            if each.loss:
                self.lose(each)
            self.write(0, is_durable=True)
            self.settle()
            self.compare(number)
        self.count_events()

    @property
    def passive(self) -> str:
        return self.other(self.source.active)

    def arm(self, number: int, fault: Fault) -> Fault:
        pids, victim = [], ""
        if fault.action == "driver":
            pids, victim = [self.world.running(self.settings).process.pid], "driver"
        elif fault.action in ("node", "other-node"):
            victim = self.source.active if fault.action == "node" else "other"
            pids = [self.nodes.pid(victim)]
        self.causes.armed(number, victim)
        self.points.arm(number, fault.point, fault.at, fault.action, pids)
        return fault

    def judge(self, number: int, fault: Fault) -> None:
        """Count the fault if it took effect."""
        if not self.points.has_fired(number):
            self.points.disarm(number)
            self.counts["faults that never came up"] += 1
        elif fault.action != "linger" or any(
            event["number"] == number for event in self.points.events("overtaken")
        ):
            self.counts[f"fault {fault.action} at {fault.point}"] += 1

    def lose(self, each: Round) -> None:
        """Lose what was written last, and write something else in its place."""
        had = self.source.get(NAMES)
        self.causes.shaken()
        if each.loss == "failover":
            left = self.source.active
            self.nodes.kill(left)
            self.nodes.start(self.other(left))
            self.source.promote(self.other(left), "--force")
        elif self.schedule.is_pair:
            for name in "ab":
                self.nodes.kill(name)
            for name in "ab":
                self.nodes.start(name)
            self.source.promote("a", "--force")
        else:
            self.nodes.kill("a")
            self.nodes.start("a")
        kept = self.source.get(NAMES)
        lost = sum(had.get(key) != kept.get(key) for key in NAMES)
        self.counts["rows lost that sinks had"] += lost
        self.counts[f"loss by {each.loss}"] += lost > 0
        self.write(each.lossy // 2)
        if each.loss == "failover":
            self.settle()
            self.causes.shaken()
            self.nodes.start(left)
            self.source.promote(self.source.active)
            self.source.until_whole()

    @staticmethod
    def other(name: str) -> str:
        return "b" if name == "a" else "a"

    def write(self, count: int, *, is_durable: bool = False) -> None:
        self.nodes.look_after()
        documents: dict[str, Any] = {}
        for key in self.rng.sample(NAMES, count):
            self.number += 1
            made = {"g": self.rng.randrange(GROUPS), "n": self.number}
            documents[key] = None if self.rng.random() < 0.25 else made

        failures: list[Exception] = []

        def is_written() -> bool:
            try:
                self.source.write(documents, is_durable=is_durable)
            except (MillstreamError, OSError) as error:
                failures.append(error)
                self.nodes.look_after()  # a fault may kill the node just now
                return False
            return True

        until(is_written, lambda: f"the source takes no writes: {failures[-1]}")

    # -- pipelines

    @property
    def settings(self) -> tuple[str, ...]:
        return self.world.settings(is_spread=self.schedule.is_spread)

    def tell_driver(self, **said: Any) -> str:
        """Have the driver do something; return what went wrong."""
        driver = self.world.running(self.settings)
        try:
            return driver.ask(self.nodes.look_after, **said)
        except DriverDied:
            self.world.bury()
            self.started.clear()
            self.counts["drivers that died"] += 1
            log = (self.world.folder / "driver.log").read_text(errors="replace")[-ERROR_CHARS_MAX:]
            self.causes.check_deaths("driver", self.counts["drivers that died"], log)
            return DRIVER_DIED

    def stop(self, sink: str) -> None:
        """Stop a pipeline, which has to do so, unless its driver is killed meanwhile."""
        wrong = self.tell_driver(do="stop", kind=sink)
        assert wrong in ("", DRIVER_DIED), f"{sink} does not stop: {wrong[:ERROR_CHARS_MAX]}"

    def check_nodes(self) -> None:
        """Fail if a node died by itself."""
        for name, node in self.nodes.by_name.items():
            found = self.nodes.deaths[name] - self.deaths[name]
            self.causes.check_deaths(name, found, node.log()[-ERROR_CHARS_MAX:])

    def settle(self) -> None:
        """Wait until all pipelines have brought over what there is."""
        until = time.monotonic() + SETTLE_S
        failures: list[str] = []
        waiting = list(self.schedule.sinks)
        self.causes.begin()
        while waiting:
            assert time.monotonic() < until, f"not level in time: {failures[-2:]}"
            assert len(failures) <= RESTARTS_MAX, f"fails again and again: {failures[-2:]}"
            self.nodes.look_after()
            sink = waiting[0]
            wrong = "" if sink in self.started else self.start(sink)
            wrong = wrong or self.tell_driver(do="settle", kind=sink)
            if wrong:
                failures.append(wrong[:ERROR_CHARS_MAX])
                assert self.causes.is_any, f"{sink} failed by itself: {failures[-1]}"
                self.counts["restarts of pipelines"] += 1
                if sink in self.started:
                    self.started.discard(sink)
                    self.stop(sink)
            elif sink != "view" or self.is_view_level():
                waiting.pop(0)
        self.check_nodes()
        if not failures:
            self.causes.settled()

    def start(self, sink: str) -> str:
        said: dict[str, Any] = {
            "do": "start", "kind": sink, "checkpoint": str(self.folder / f"checkpoint-{sink}"),
        }  # fmt: skip
        limits = {"numPartitions": 2, "maxRowsPerBatch": self.schedule.rows_max, "pollMs": 50}
        if sink == "apply":
            said["source"] = self.source.options(rollback="rows", **limits)
            said |= {"target": self.copy.options(), "table": str(self.folder / "table")}
        elif sink == "view":
            said["source"] = self.source.options()
            said |= {"design": "d", "rows": self.schedule.rows_max}
        else:
            # These cannot repair, so they are given only what nothing takes away.
            said["source"] = self.source.options(durableOnly="true", **limits)
            more = {"transactional": "true", "sinkId": "s"} if sink == "transactional" else {}
            said["target"] = self.copy.options(**more)
        wrong = self.tell_driver(**said)
        if not wrong:
            self.started.add(sink)
        return wrong

    # -- comparison

    def ask_view(self, words: str) -> list[Any]:
        base = self.nodes.by_name[self.source.active].http
        page = f"{base}/{self.source.name}/_design/d/_view/v?{words}"
        with urllib.request.urlopen(page, timeout=TIMEOUT_S) as answer:
            rows: list[Any] = json.load(answer)["rows"]
            return rows

    def is_view_level(self) -> bool:
        """Whether the view answers with all that was written before; asked by who waits."""
        try:
            self.ask_view(f"limit=1&reduce=false&timeout={VIEW_MS}")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def compare(self, number: int) -> None:
        """Every sink and a fresh read have what the source has."""
        expected = self.source.get(NAMES)
        where = f"round {number}"
        _, fresh = rows_of(
            MillstreamDataSource, "op string, key string, value binary",
            **self.source.options(numPartitions=1),
        )  # fmt: skip
        puts = {row["key"]: row["value"] for row in fresh if row["op"] == "put"}
        differing(f"{where}: a fresh read", _ours(puts), expected)
        if "apply" in self.schedule.sinks:
            rows = ParquetTarget(self.folder / "table").table().to_pylist()
            found = {row["key"]: row["value"] for row in rows}
            differing(f"{where}: the table", _ours(found), expected)
        if "view" in self.schedule.sinks:
            self.compare_view(where, expected)
        if set(self.schedule.sinks) - {"view"}:
            differing(f"{where}: the copy", self.copy.get(NAMES), expected)
        self.counts["comparisons"] += 1

    def compare_view(self, where: str, expected: dict[str, bytes]) -> None:
        documents = {key: json.loads(value) for key, value in expected.items()}
        rows = self.ask_view("reduce=false&update=false")
        found = {row["id"]: (row["key"], row["value"]) for row in rows}
        if len(found) != len(rows):
            raise Difference(f"{where}: rows of the view twice")
        wanted = {key: (one["g"], one["n"]) for key, one in documents.items()}
        differing(f"{where}: the view", _ours(found), wanted)
        sums = Counter[int]()
        for one in documents.values():
            sums[one["g"]] += one["n"]
        groups = {row["key"]: row["value"] for row in self.ask_view("group=true&update=false")}
        if _ours(groups) != sums:
            raise Difference(f"{where}: sums {groups}, expected {sums}")

    def count_events(self) -> None:
        for name in ("rollbacks", "fetched", "sweeps"):
            told = sum(event[name] for event in self.points.events("applied"))
            self.counts[f"{name} applied"] += told
        ids = [event["id"] for event in self.points.events("batch")]
        self.counts["batches"] += len(ids)
        self.counts["batches again"] += len(ids) - len(set(ids))
        if "apply" not in self.schedule.sinks:
            plans = [
                json.dumps([event["start"], event["end"]])
                for event in self.points.events("planned")
            ]
            self.counts["batches"] += len(set(plans))
            self.counts["batches again"] += len(plans) - len(set(plans))
        self.counts["view commits"] += len(self.points.events("cycle"))


def _ours(found: dict[Any, Any]) -> dict[Any, Any]:
    """Leave out design documents and marks of durability."""
    return {
        key: value
        for key, value in found.items()
        if key is not None and not str(key).startswith(("_", "mark"))
    }


def differing(what: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Fail, and say how many keys differ and which are some of them."""
    wrong = {
        key: (found.get(key), expected.get(key))
        for key in found.keys() | expected.keys()
        if found.get(key) != expected.get(key)
    }
    if wrong:
        some = dict(sorted(wrong.items())[:4])
        raise Difference(f"{what} differs in {len(wrong)} keys: {some}")
