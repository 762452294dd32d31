"""Appends frames that the last owner acknowledged elsewhere and the local disk has lost.

Frames that were written and not synced are lost in a power failure. A folder that is restored from
a copy ends where the copy was made. Replicas may have received more frames. The opening asks them
if the last owner did not close the log, and the disk may differ from how that owner left it. The
reply is bytes. They are accepted while they continue the log by number, offset and digest. They are
written again into the new owner's segment, like all frames that are not known to be synced. So no
existing file is changed, and a crash leaves the log as it was.

Failure: 1. The reply contains frames of a later owner, which continued the log elsewhere. 2. This
owner would continue the log beside it. Hence only frames of the last owner of this folder are
accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nosync_nb.store.log import frames
from nosync_nb.store.log.fencing import WriterLease
from nosync_nb.store.log.frames import Frame, Mark
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.log.recovery import RecoveredLog
from nosync_nb.store.log.segments import Segment


class CaughtUpFrames(NamedTuple):
    """The bytes of frames after a mark, and a function that describes the accepted frames."""

    data: bytes
    told: Callable[[list[Frame]], str]


Ask = Callable[[Segment, Mark], CaughtUpFrames | None]
"""Returns the frames of the owner of a segment, the newest one, that replicas have after a mark."""


def may_lack_frames(recovered: RecoveredLog, lease: WriterLease, machine: HostIdentity) -> bool:
    """Returns True if the last owner may have written frames that this disk lacks."""
    before = lease.before
    if before is None or not recovered.live or lease.copied:
        return False
    wrote, me = before.last(recovered.live[-1].generation), machine.identity()
    same_boot = bool(me.boot) and (wrote.host, wrote.boot) == (me.host, me.boot)
    moved = bool(before.place.path) and before.place[1:] != lease.owner.place[1:]
    return not wrote.closed and (moved or not same_boot)


def catch_up_tail(
    recovered: RecoveredLog, lease: WriterLease, machine: HostIdentity, ask: Ask | None
) -> RecoveredLog:
    """Returns the recovered log, extended by the frames of its last owner that replicas have."""
    recovered.notes.extend(lease.copied)
    if ask is None or not may_lack_frames(recovered, lease, machine):
        return recovered
    tail, head = recovered.tail, recovered.live[-1]
    reply = ask(head, tail.end)
    if reply is None:
        return recovered
    received, _ = frames.scan_buffer(reply.data, tail.end.offset, tail.end)
    accepted = [each for each in received if each.generation == head.generation]
    if not accepted or len(accepted) < len(received):
        return recovered
    local_pieces = [(at, data[: max(0, tail.end.offset - at)]) for at, data in tail.pieces]
    longer = tail._replace(
        frames=[*tail.frames, *accepted],
        end=accepted[-1].end,
        pieces=[*local_pieces, (tail.end.offset, reply.data)],
    )
    return recovered._replace(tail=longer, notes=[*recovered.notes, reply.told(accepted)])
