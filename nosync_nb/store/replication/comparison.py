"""Compares what each replica holds with the undamaged files of a log.

Digests are compared file by file; for a segment, the digests of the bytes that both sides have. A
replica that lacks the latest commits is behind. A replica differs if a file has other bytes, or if
it lacks a file that its own frames name. A difference is checked a second time after another
survey, because the owner and its keeper continue to write meanwhile.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.log.segments import HEADER_BYTES, Segment
from nosync_nb.store.replication import config, file_layout
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.backends.folder import digest
from nosync_nb.store.replication.endpoints import open_copy
from nosync_nb.store.replication.protocol import Replica
from nosync_nb.store.replication.remote_call import Beat, call_remote
from nosync_nb.store.verification.report import (
    CopyState,
    DamagedRange,
    ReplicaFinding,
    VerificationReport,
)
from nosync_nb.store.verification.survey import LogSurvey, PresentFile, survey_log
from nosync_nb.store.verification.verify import (
    Pause,
    ReadTally,
    admitted_files,
    completed_report,
    immutable_files,
    verified_state,
)

_PIECE = 1 << 20


class LocalFiles(NamedTuple):
    """The local side of a comparison.

    Attributes:
        folder: the folder of the log.
        surveyed: the survey of the log.
        hurt: the names of the damaged files of the log.
        counted: receives the number of bytes that were read, and may sleep.
    """

    files: Files
    folder: str
    surveyed: LogSurvey
    hurt: frozenset[str]
    counted: Callable[[int], None] = lambda count: None


def verified_local_files(
    path: str,
    replicas: Sequence[ReplicaAddress] | None = None,
    *,
    files: Files | None = None,
    pause: Pause | None = None,
) -> VerificationReport:
    """Verifies a log and its replicas, and reports the files with other bytes than were written.

    Args:
        replicas: the replicas of the log; `None` means those that are stored with the log, if this
            user has signed them.
        pause: see `verify`, which also lists the errors.
    """
    disk, began = files or Files(), time.monotonic()
    folder, tally, notes = admitted_files(disk, path), ReadTally(pause), []
    log = verified_state(disk, folder, HostIdentity(), tally)
    if replicas is None:
        try:
            replicas = config.read_config(disk, folder, log.survey.log_id).replicas
        except NosyncError as error:
            replicas = ()
            notes.append(str(error))

    def survey_again() -> LogSurvey:
        return completed_report(
            disk, folder, survey_log(disk, folder, HostIdentity(), tally), tally
        )

    if replicas:
        surveyed = completed_report(disk, folder, log.survey, tally)
        local = LocalFiles(disk, folder, surveyed, frozenset(each.file for each in log.damage))
    copies = [compare_replicas(local, address, survey_again) for address in replicas]
    seconds = time.monotonic() - began
    return tally.verified(folder, log, seconds, copies, notes)


def compare_replicas(
    own: LocalFiles, address: ReplicaAddress, again: Callable[[], LogSurvey]
) -> ReplicaFinding:
    """Compares one replica with a log.

    Args:
        own: the local side of the comparison.
        again: surveys the log again; called if something differs.
    """
    try:
        first = call_remote(address.url, _Comparison(own, address))
        if first.state != "differs":
            return first
        fresh = again()
        hurt = own.hurt.union(each.file for each in fresh.damage)
        second = call_remote(
            address.url, _Comparison(own._replace(surveyed=fresh, hurt=hurt), address)
        )
    except NosyncError as error:
        return ReplicaFinding(address.url, "unreachable", why=str(error))
    first_damage = {each.file for each in first.damage}
    damage = tuple(each for each in second.damage if each.file in first_damage)
    return second._replace(damage=damage) if damage else second._replace(state="behind", damage=())


class _Comparison:
    """One comparison with a replica; it runs in the thread of the remote call."""

    def __init__(self, local: LocalFiles, address: ReplicaAddress) -> None:
        self._local, self._address = local, address

    def __call__(self, beat: Beat) -> ReplicaFinding:
        local = self._local
        with open_copy(self._address, local.files, local.surveyed.log_id) as replica:
            sizes = replica.held().files
            beat()
            return self._compare(replica, sizes, beat)

    def _compare(self, replica: Replica, sizes: Mapping[str, int], beat: Beat) -> ReplicaFinding:
        surveyed, url = self._local.surveyed, self._address.url
        present = {each.name: each for each in surveyed.held}
        damage: list[DamagedRange] = []
        end = 0
        for segment in surveyed.segments:
            size = min(
                sizes.get(segment.name, 0), present.get(segment.name, _no_file(segment)).size
            )
            if size < HEADER_BYTES:
                continue
            end = max(end, segment.start.offset + size - HEADER_BYTES)
            damage += self._differences(replica, segment.name, size, beat)
        behind = bool(surveyed.ends) and end < surveyed.ends[-1][0]
        for name, item in immutable_files(surveyed).items():
            if item.size is None or (name in sizes and file_layout.is_segment(name)):
                continue
            if name not in sizes:
                behind = behind or item.current
                expected = end >= item.after if item.framed else surveyed.state in sizes
                if item.current and item.after and expected:
                    damage.append(DamagedRange(name, "it is missing"))
            elif sizes[name] != item.size:
                damage.append(DamagedRange(name, f"it has {sizes[name]} bytes, not {item.size}"))
            else:
                damage += self._differences(replica, name, item.size, beat)
        state: CopyState = "differs" if damage else "behind" if behind or not sizes else "level"
        why = "" if sizes else "it has no data of the log"
        return ReplicaFinding(url, state, _epoch_before(surveyed, end), tuple(damage), why)

    def _differences(
        self, replica: Replica, name: str, size: int, beat: Beat
    ) -> list[DamagedRange]:
        """Compares the first `size` bytes of a file on both sides; returns the damage, if any."""
        local = self._local
        remote = replica.digest(name, size)
        beat()
        try:
            local_hash = digest(local.files, file_layout.file_path(local.folder, name), size)
            for at in range(0, size, _PIECE):
                local.counted(min(_PIECE, size - at))
                beat()
        except NosyncError:
            return []  # a fault of the local disk, which the verification of the log reports
        beat()
        if local_hash == remote or name in local.hurt:
            return []
        return [DamagedRange(name, "its bytes differ from this log")]


def _no_file(segment: Segment) -> PresentFile:
    return PresentFile(segment.name, 0)


def _epoch_before(surveyed: LogSurvey, end: int) -> int | None:
    """Returns the last epoch before an offset in the stream; None if the survey begins later."""
    at = bisect_right(surveyed.ends, end, key=lambda each: each[0])
    if at:
        return surveyed.ends[at - 1][1]
    return None if surveyed.ends else surveyed.epoch
