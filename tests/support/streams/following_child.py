"""A bucket reader in a process of its own, which kills itself, or its node, before an effect.

    python tests/support/streams/following_child.py ADDRESS SINK PATH KILL_AT VICTIM

SINK is `sqlite`, `plain` (the same, without extensions of the protocol) or `lines`. Before effect
number KILL_AT (0: never) process VICTIM (0: this one) is gone, as by kill -9; who lives on ends
when everything there is was read. One change comes per window.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from millstream.access import kv_login
from millstream.upr import BucketReader, JsonLinesSink, SqliteSink
from millstream.upr.aio.ledger import Ledger
from millstream.upr.core.bookkeeper import Effect
from millstream.wire.mcbp import Feature


class Countdown:
    def __init__(self, kill_at: int, victim: int) -> None:
        self.left, self.victim = kill_at, victim or os.getpid()

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(self.victim, signal.SIGKILL)
            sys.stdout.write("killed")


def main() -> None:
    address, kind, path, kill_at, victim = sys.argv[1:]
    countdown = Countdown(int(kill_at), int(victim))
    sink = JsonLinesSink(path) if kind == "lines" else SqliteSink(path)
    if kind == "plain":
        kv_login._FEATURES = tuple(set(kv_login._FEATURES) - {Feature.MILLSTREAM})  # type: ignore[misc]
    perform, write = Ledger.perform, sink.write

    def performing(self: Ledger, effect: Effect) -> None:
        countdown.tick()
        perform(self, effect)
        countdown.tick()

    def writing(effects: Sequence[Effect]) -> None:
        write(effects)
        countdown.tick()

    Ledger.perform = performing  # type: ignore[method-assign]
    sink.write = writing  # type: ignore[method-assign]
    reader = BucketReader(
        address, bucket="default", sink=sink, until_now=True, window_bytes=1, ring_changes=50
    )
    asyncio.run(reader.run())
    sink.close()


if __name__ == "__main__":
    main()
