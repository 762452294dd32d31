"""The durable log: frames, segments, checkpoints, one writer."""

from nosync_nb.store.log.frames import Frame, FramePosition, Mark
from nosync_nb.store.log.log import Log
from nosync_nb.store.log.owner import LogOwner

__all__ = ["Frame", "FramePosition", "Log", "LogOwner", "Mark"]
