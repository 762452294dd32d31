"""The durable log: frames, segments, checkpoints, one writer."""

from nosync_nb.store.log.frames import Frame, Mark, Position
from nosync_nb.store.log.log import Log
from nosync_nb.store.log.owner import LogOwner

__all__ = ["Frame", "Log", "LogOwner", "Mark", "Position"]
