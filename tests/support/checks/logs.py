"""The content of a log without opening it, and its shipping."""

from __future__ import annotations

import os
from pathlib import Path

from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import Log, checkpoint, recovery, segments
from nosync_nb.store.replication.agent.shipper import Shipper


def everything(path: str) -> list[bytes]:
    files = Files()
    chain = segments.linked_segments(files, path, files.names(path))
    if not chain.live:
        return []
    return [
        frame.payload
        for frame in recovery.read_tail(files, path, chain, chain.live[0].start).frames
    ]


def verified_frames(log: Log) -> int:
    """Reads every retained frame of an open log; returns the number of the last one.

    Raises:
        CorruptLogError: a frame is damaged or missing.
    """
    files, head = Files(), log.head
    names = files.names(log.path)
    chain = segments.linked_segments(files, log.path, names)
    for name in reversed(checkpoint.checkpoint_names(names)):
        state = checkpoint.read_checkpoint(files, log.path, name)
        if chain.missing is not None and isinstance(state, checkpoint.Checkpoint):  # trimmed
            chain = segments.linked_segments(files, log.path, names, since=state.mark.offset)
    if not chain.live:
        return 0
    mark = chain.live[0].start
    for segment, after in zip(chain.live, [*chain.live[1:], None], strict=True):
        stop = min([head, *([after.start] if after else [])], key=lambda one: one.offset)
        if stop.offset > mark.offset:
            part = chain._replace(live=[segment])
            mark = recovery.read_tail(
                files, log.path, part, mark, upto=stop.offset, known=stop.seq
            ).end
    return mark.seq


def ship_all(shipper: Shipper) -> None:
    """Ships until the replica has everything."""
    while shipper.ship():
        pass


def read_checkpoint_of(folder: str | Path) -> tuple[str, checkpoint.Checkpoint]:
    """The name and the content of the only checkpoint of a log."""
    (name,) = checkpoint.checkpoint_names(os.listdir(folder))
    found = checkpoint.read_checkpoint(Files(), str(folder), name)
    assert isinstance(found, checkpoint.Checkpoint)
    return name, found
