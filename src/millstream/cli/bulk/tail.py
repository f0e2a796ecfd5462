"""`millstream tail BUCKET`: the change stream as JSON lines.

Invariants:
1. Lines are those of `upr.core.lines`, without loads.
2. A checkpoint is saved only after the lines it covers were handed to stdout: lines may repeat
   after a crash, none is missing.
3. A rollback is one line; everything of its partition above its seqno, printed before, is void.

Elsewhere: the lines (`upr.core.lines`).

Source: docs/reference/tail.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from millstream.cli.connect import (
    BucketArgument,
    NodeOptions,
    at_node,
    client_of,
    tls_of,
    who_of,
)
from millstream.upr.aio.checkpoints import FileCheckpointStore
from millstream.upr.aio.client import (
    BarrierReached,
    Changes,
    ConnectionLost,
    Consumer,
    RolledBack,
)
from millstream.upr.core.lines import line_of_barrier, line_of_change, line_of_rollback
from millstream.wire.frames import change_of

__all__ = ["command"]

SAVE_EVERY_S: Final = 1.0

FromStartOption = Annotated[
    bool, typer.Option("--from-start", help="Begin with all there is, not with what comes now.")
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="FILE",
        help="Go on where this file says, and keep the place in it.",
    ),
]
UntilNowOption = Annotated[
    bool, typer.Option("--until-now", help="End with what was there when the command began.")
]
BarrierOption = Annotated[
    bool,
    typer.Option("--barrier", help="Print a line when everything there now has been printed."),
]


@at_node
def command(
    bucket: BucketArgument,
    from_start: FromStartOption = False,
    checkpoint: CheckpointOption = None,
    until_now: UntilNowOption = False,
    barrier: BarrierOption = False,
    *,
    at: NodeOptions,
) -> None:
    """Print the changes of a bucket as JSON lines."""
    who = who_of(at.user, at.password_file)
    client_of(bucket, **at.options).close()  # waits for a node that is starting
    consumer = Consumer(
        at.address,
        bucket=bucket,
        user=who.user,
        password=who.password,
        checkpoints=None if checkpoint is None else FileCheckpointStore(checkpoint),
        start="beginning" if from_start else "now",
        until_now=until_now,
        tls=tls_of(at.tls_ca),
    )
    if barrier:
        consumer.barrier(b"tail")
    try:
        asyncio.run(_tail(consumer, keeps_place=checkpoint is not None))
    except BrokenPipeError:
        # The reader of our output has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _tail(consumer: Consumer, *, keeps_place: bool) -> None:
    """Print events until the end, or until told to stop, which is no failure."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with consumer:
            if not keeps_place:
                await _print_events(consumer)
                return
            await consumer.save()
            try:
                await _print_and_save(consumer)
            except asyncio.CancelledError:
                await consumer.save()


async def _print_and_save(consumer: Consumer) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            saver = group.create_task(_save_often(consumer))
            await _print_events(consumer)
            saver.cancel()
    except BaseExceptionGroup as failed:  # its first error says it all
        raise failed.exceptions[0] from None
    await consumer.save()


async def _print_events(consumer: Consumer) -> None:
    """Print; nothing is awaited between taking an event and flushing its lines (invariant 2)."""
    out = sys.stdout.buffer
    async for event in consumer:
        match event:
            case Changes(_, uuid, branch, _, frames):
                out.writelines(
                    [line_of_change(change_of(frame), uuid, branch) for frame in frames]
                )
            case RolledBack(partition_id, seqno, uuid, branch, _):
                out.write(line_of_rollback(partition_id, seqno, uuid, branch))
            case BarrierReached(_, reached):
                out.write(line_of_barrier(reached))
            case ConnectionLost(reason):
                print(f"{reason}; trying again", file=sys.stderr)
        out.flush()


async def _save_often(consumer: Consumer) -> None:
    saved = consumer.checkpoint
    while True:
        await asyncio.sleep(SAVE_EVERY_S)
        if consumer.checkpoint != saved:
            saved = consumer.checkpoint
            await consumer.save()
