"""Further: frames that the log's own disk has lost, and that somebody else has.

What was written and not synced goes with the machine's power, and a folder that comes back from a
copy ends where that was made. Who shipped the log may have had more. Whoever opens it asks, if its
last owner did not leave properly and the disk is not known to be as he left it; what he is given
are bytes, believed as far as they continue the log by number, place and digest, and written again
in his own segment, as all that is not known to be synced. So no file that is there is changed, and
a crash leaves the log as it was.

Failure: the frames of a later owner are taken, who went on elsewhere. This one would go on beside
him. Hence they are of the owner who wrote last here, and of no other.
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
    """The bytes of frames that follow a mark, and what is told of them, given the frames."""

    data: bytes
    told: Callable[[list[Frame]], str]


Ask = Callable[[Segment, Mark], CaughtUpFrames | None]
"""Returns what somebody has of the owner of a segment, the newest one, after a mark."""


def may_lack_frames(recovered: RecoveredLog, lease: WriterLease, machine: HostIdentity) -> bool:
    """Whether the last owner may have written more than is here."""
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
    """What was recovered, with the frames after it that somebody else has."""
    recovered.notes.extend(lease.copied)
    if ask is None or not may_lack_frames(recovered, lease, machine):
        return recovered
    tail, head = recovered.tail, recovered.live[-1]
    given = ask(head, tail.end)
    if given is None:
        return recovered
    more, _ = frames.scan_buffer(given.data, tail.end.offset, tail.end)
    own = [each for each in more if each.generation == head.generation]
    if not own or len(own) < len(more):
        return recovered
    here = [(at, data[: max(0, tail.end.offset - at)]) for at, data in tail.pieces]
    longer = tail._replace(
        frames=[*tail.frames, *own],
        end=own[-1].end,
        pieces=[*here, (tail.end.offset, given.data)],
    )
    return recovered._replace(tail=longer, notes=[*recovered.notes, given.told(own)])
