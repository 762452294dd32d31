"""A program that dies at a given moment of a commit: in a function, in a round, or near a write.

For each line of input it forks a process that opens the folder, reports the contents of the last
epochs, commits one more epoch, and reports that. The inputs follow from the number of the epoch;
the results of the stage `tags` are random. It writes lines of JSON:

    {"found": {EPOCH: SEEN}} · {"shown": {EPOCH: SEEN}} · {"ended": STATUS}

It dies at the n-th moment of a kind: `answered` and `further` are calls and returns of the function
of that name, `disk` is before and after each step on the disk, `shown` is before and after the
report of its commit.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
from types import FrameType
from typing import Any

from workload import Fuse, say

import nosync_nb

STAGES = ("tags", "most", "reach")
LOOKED_AT = 3  # epochs before the last


def answered(row: Any) -> tuple[int, int, int]:
    """Returns another result at every call."""
    return (row.src, row.dst, random.getrandbits(50))


def further(row: Any) -> tuple[int]:
    """Runs once per row and round of the loop."""
    return (row.dst,)


def edges_of(epoch: int) -> list[tuple[int, int]]:
    """The edges that an epoch adds: the chain continues from the epoch before."""
    return [(3 * epoch + i - 3, 3 * epoch + i - 2) for i in range(3)]


def define(on: nosync_nb.Session) -> None:
    """Defines a nondeterministic stage, a stage that reads it, and a loop."""
    edges = on.input("edges", "src int, dst int")
    tags = edges.map(answered, "src int, dst int, tag bigint")
    on.stage("tags", tags, nondeterministic=True)
    on.stage("most", on["tags"].group_by("src").agg(tag="max(tag)"))
    start = edges.filter("src = 0").select("dst as node")
    on.stage(
        "reach",
        start.iterate(
            lambda held: (
                held.join(edges, on={"node": "src"})
                .map(further, "node int")
                .concat(start)
                .distinct()
            )
        ),
    )


def seen(on: nosync_nb.Session, epoch: int) -> dict[str, list[list[int]]]:
    return {name: sorted(map(list, on[name].rows(at=epoch))) for name in STAGES}


class Moments:
    """Kills the process at the n-th call or return of a function of some name."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._left = name, count

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if frame.f_code.co_name == self._name and event in ("call", "return"):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def live(folder: str, kind: str, count: int) -> None:
    """Runs one process: recovers, commits one epoch, and dies at the given moment, if any."""
    random.seed()
    on = nosync_nb.open(folder)
    if not on.stages:
        define(on)
    assert on.recovery.recomputed == 0
    tell("found", {at: seen(on, at) for at in range(max(0, on.now - LOOKED_AT) + 1, on.now + 1)})
    fuse = Fuse()
    on["edges"].insert(edges_of(on.now + 1))
    if kind == "disk":
        fuse.light(count)
    sys.setprofile(Moments(kind, count))
    epoch = on.commit()
    sys.setprofile(None)
    fuse.light(math.inf)
    shown = {epoch: seen(on, epoch)}
    if (kind, count) == ("shown", 1):
        os.kill(os.getpid(), signal.SIGKILL)
    tell("shown", shown)
    if (kind, count) == ("shown", 2):
        os.kill(os.getpid(), signal.SIGKILL)
    on.close()


def tell(what: str, said: Any) -> None:
    say(json.dumps({what: said}))


def serve() -> None:
    """Forks a process for each line of input: folder, kind of moment, how many of them."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                live(*json.loads(line))
                os._exit(0)
            except BaseException as error:
                say(json.dumps({"failed": repr(error)}))
                os._exit(1)
        tell("ended", os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    serve()
