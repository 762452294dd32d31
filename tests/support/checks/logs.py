"""What a log holds, read without opening it."""

from __future__ import annotations

from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import recovery, segments


def everything(path: str) -> list[bytes]:
    """Returns all payloads of a log, from the first."""
    files = Files()
    chain = segments.linked_segments(files, path, files.names(path))
    if not chain.live:
        return []
    return [
        frame.payload
        for frame in recovery.read_tail(files, path, chain, chain.live[0].start).frames
    ]
