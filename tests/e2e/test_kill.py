"""kill -9 of the whole node at random moments of a load, over and over on one data directory.

Shown after every restart:
1. No write acknowledged as persisted is missing, nor anything once read after a restart; what was
   acknowledged from memory may be gone, but never in part: a key shows one of the writes that
   were asked for, none older than its newest persisted one.
2. No seqno of a partition repeats with other content under the same uuid.
3. A stream reader's position is judged as the rule says, and ends with the server's documents.

MILLSTREAM_KILLS sets how often (6, and on until one lost an unflushed write; `make kills` has
50). MILLSTREAM_SEED repeats a run.
"""

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, Packet, request
from support.kv.raw_client import Closed, RawClient
from support.node.node_process import NodeProcess
from support.streams.stream_witness import (
    Content,
    History,
    Witness,
    content_of,
    documents_of,
    failovers_of,
    high_seqnos,
    merged,
)

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "6"))
SEED = int(os.environ.get("MILLSTREAM_SEED") or random.randrange(2**32))
PARTITIONS = 16
WRITERS = 3
KEYS_PER_WRITER = 250
BATCH = 20
LOAD_S_MAX = 1.0
BUCKET = "default"
DURABLE = bytes((0x11, 3))
"""Frame info: persist to a majority."""
MakeNode = Callable[..., NodeProcess]
Documents = dict[bytes, tuple[int, Content]]


@dataclass
class Ledger:
    """What was asked of one key: values in order of writing, None for a deletion."""

    asked: list[bytes | None] = field(default_factory=lambda: [None])
    floor: int = 0
    """Index of the oldest write that the key may still show after a kill."""
    acknowledged: int = 0
    """The same after a clean stop."""

    def judge(self, key: bytes, content: Content | None) -> None:
        """Check what the key shows after a restart; from now on it may not be lost."""
        shown = None if content is None or content.is_deleted else content.digest
        for index in range(len(self.asked) - 1, self.floor - 1, -1):
            value = self.asked[index]
            if (None if value is None else content_of(key, 0, value).digest) == shown:
                self.asked, self.floor, self.acknowledged = [value], 0, 0
                return
        raise AssertionError(
            f"{key!r} shows {content}; the newest persisted write is {self.asked[self.floor]!r} "
            f"and {len(self.asked) - self.floor - 1} came after it (seed {SEED})"
        )


class Writer:
    """Writes its own keys in batches until the connection breaks."""

    def __init__(self, number: int, history: History) -> None:
        self.keys = [b"writer-%d-key-%d" % (number, n) for n in range(KEYS_PER_WRITER)]
        self.ledgers = {key: Ledger() for key in self.keys}
        self.dice = random.Random(SEED * 31 + number)
        self.acknowledged = self.persisted = 0
        self._history = history
        self._count = 0

    def run(self, address: tuple[str, int]) -> None:
        """Write until the server is gone."""
        try:
            with RawClient(address, BUCKET) as client:
                while True:
                    self._write_batch(client)
        except (Closed, OSError):
            return

    def _write_batch(self, client: RawClient) -> None:
        written: list[tuple[bytes, int, bool]] = []
        frames = []
        for key in self.dice.sample(self.keys, BATCH):
            is_durable = self.dice.random() < 0.2
            value = None if self.dice.random() < 0.15 else self._value()
            ledger = self.ledgers[key]
            ledger.asked.append(value)
            written.append((key, len(ledger.asked) - 1, is_durable))
            frames.append(_write(key, value, is_durable, len(written) - 1))
        client.send(b"".join(frames))
        for key, index, is_durable in written:
            self._on_reply(client.receive(), key, index, is_durable)

    def _value(self) -> bytes:
        self._count += 1
        return b'{"n": %d, "pad": "%s"}' % (self._count, b"x" * self.dice.randrange(300))

    def _on_reply(self, reply: Packet, key: bytes, index: int, is_durable: bool) -> None:
        ledger = self.ledgers[key]
        value = ledger.asked[index]
        if value is None and reply.status == 1:
            return  # nothing there to delete
        assert reply.status == 0, f"status 0x{reply.status:x} for a write of {key!r}"
        uuid, seqno = (int.from_bytes(reply.extras[at : at + 8], "big") for at in (0, 8))
        content = content_of(key, reply.cas, value)
        self._history.note(partition_of(key, PARTITIONS), uuid, seqno, content)
        self.acknowledged += 1
        ledger.acknowledged = max(ledger.acknowledged, index)
        if is_durable:
            self.persisted += 1
            ledger.floor = max(ledger.floor, index)


def _write(key: bytes, value: bytes | None, is_durable: bool, opaque: int) -> bytes:
    vbucket = partition_of(key, PARTITIONS)
    framing = DURABLE if is_durable else b""
    if value is None:
        return request(Opcode.DELETE, vbucket=vbucket, opaque=opaque, framing=framing, key=key)
    return request(
        Opcode.SET, vbucket=vbucket, opaque=opaque, framing=framing, extras=bytes(8), key=key,
        value=value,
    )  # fmt: skip


class Trial:
    """One data directory and everybody who looks at it."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.history = History()
        self.writers = [Writer(n, self.history) for n in range(WRITERS)]
        self.witness = Witness(self.history, PARTITIONS)
        self.failures: list[BaseException] = []

    def load(self, seconds: float, end: Callable[[], object]) -> None:
        """Write and follow for `seconds`, then end the node in the given way."""
        jobs = [lambda w=writer: w.run(self.node.kv) for writer in self.writers]
        threads = [
            threading.Thread(target=self._run, args=(job,)) for job in [*jobs, self._follow]
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)  # the moment of the end is drawn by the dice
        end()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a client still waits for a node that is gone"
        self.witness.close()
        if self.failures:
            raise self.failures[0]

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  carried to the test's thread
            self.failures.append(error)

    def _follow(self) -> None:
        try:
            self.witness.follow()
        except (Closed, OSError):
            return

    def check(self) -> None:
        """Look at a node that has come back, while nobody writes."""
        node = self.node
        with RawClient(node.kv, BUCKET) as client:
            highs = high_seqnos(client)
        parts = documents_of(node.kv, BUCKET, PARTITIONS)
        shown = merged(parts)
        self._check_prefix(parts, highs)
        for writer in self.writers:
            for key, ledger in writer.ledgers.items():
                ledger.judge(key, shown.get(key))
        self.witness.connect(node.kv, BUCKET)
        self.witness.follow_to(highs)
        for partition, place in enumerate(self.witness.places):
            assert place.documents() == parts[partition], (
                f"partition {partition}: the follower differs from the server (seed {SEED})"
            )

    def _check_prefix(self, parts: list[Documents], highs: dict[int, int]) -> None:
        """Of every history that is left, all known writes up to its end must be left."""
        with RawClient(self.node.kv, BUCKET) as client:
            logs = [
                failovers_of(client.ask(Opcode.GET_FAILOVER_LOG, vbucket=p).value)
                for p in range(PARTITIONS)
            ]
        ends: dict[tuple[int, int], int] = {}
        for partition, log in enumerate(logs):
            end = highs[partition]
            for uuid, began in log:
                ends[partition, uuid] = end
                end = min(end, began)
        for (partition, uuid, seqno), content in self.history.seen.items():
            if seqno <= ends.get((partition, uuid), 0):
                left = parts[partition].get(content.key, (0, None))
                assert left[0] >= seqno, (
                    f"partition {partition} reaches past seqno {seqno} of {uuid:012x} but lacks "
                    f"{content}; it shows {left} (seed {SEED})"
                )


def failover_logs(node: NodeProcess) -> list[bytes]:
    with RawClient(node.kv, BUCKET) as client:
        return [client.ask(Opcode.GET_FAILOVER_LOG, vbucket=p).value for p in range(PARTITIONS)]


@pytest.mark.slow
@pytest.mark.timeout(600 + KILLS * 40)
def test_nothing_persisted_is_lost_and_no_history_repeats(make_node: MakeNode) -> None:
    sys.stdout.write(f"MILLSTREAM_SEED={SEED}\n")
    dice = random.Random(SEED)
    node = make_node("--bucket", f"{BUCKET}:{PARTITIONS}", "--flush-interval", "100").start()
    trial = Trial(node)
    with contextlib.closing(trial.witness):
        _kill_over_and_over(trial, node, dice)
    assert all(writer.persisted > KILLS for writer in trial.writers)
    assert trial.witness.rollbacks > 0, "no kill ever lost an unflushed write: nothing was tried"


def _kill_over_and_over(trial: Trial, node: NodeProcess, dice: random.Random) -> None:
    trial.check()
    for number in range(4 * KILLS):
        if number >= KILLS and trial.witness.rollbacks > 0:
            break  # chance decides whether a kill loses what was not flushed
        trial.load(dice.uniform(0.02, LOAD_S_MAX), node.kill)
        if number % 4 == 3:  # once more while it recovers
            node.launch()
            time.sleep(dice.uniform(0.0, 1.0))  # any moment of the recovery
            node.kill()
        node.start()
        trial.check()
    _check_clean_stop(trial)


def _check_clean_stop(trial: Trial) -> None:
    """After a clean stop nothing acknowledged is missing, and no history is cut."""
    logs, rollbacks = failover_logs(trial.node), trial.witness.rollbacks
    trial.load(0.5, lambda: check_stopped(trial.node))
    for writer in trial.writers:
        for ledger in writer.ledgers.values():
            ledger.floor = ledger.acknowledged
    trial.node.start()
    trial.check()
    assert failover_logs(trial.node) == logs
    assert trial.witness.rollbacks == rollbacks


def check_stopped(node: NodeProcess) -> None:
    assert node.stop() == 0
