"""Verifies a log: reads all of its files once, and reports damage.

    survey -> the files of rows -> damaged files again, after another survey

A file that is missing, or differs from its record, is checked again against a new survey, because
the owner may have merged it away. Only damage in every round is reported. So verification does not
wait for the owner, and works for logs in use.

Cost: reads every byte once.

Memory: the names of files, and a piece of one file.

`immutable_files` lists the files of a log that do not change any more, with a check for each. A
file of rows is checked by its digest in the log, a checkpoint by its own checksums. A segment is
checked by its successor, whose header has the digest of its last frame. The last segment still
grows and is not listed. So a copy of a file can be checked against the log before it replaces the
file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from itertools import pairwise
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import FOLDERS, PACK, PART, checked_path_within
from nosync_nb.store.log import checkpoint, segments
from nosync_nb.store.log import folder as log_folder
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.log.segments import Segment
from nosync_nb.store.records.file_references import ExpectedFile
from nosync_nb.store.safe_decoding import CRAFTED
from nosync_nb.store.verification.file_checks import (
    checkpoint_damage,
    closed_segment_damage,
    rows_damage,
)
from nosync_nb.store.verification.report import (
    DamagedRange,
    ReplicaFinding,
    VerificationReport,
    combined_reports,
)
from nosync_nb.store.verification.survey import Counted, LogSurvey, survey_log
from nosync_nb.trace import checksums
from nosync_nb.trace.checksums import FileDamage

_ROUNDS = 3

Pause = Callable[[], None]


class VerifiedState(NamedTuple):
    """The last survey of a log, and the confirmed damage."""

    survey: LogSurvey
    damage: tuple[DamagedRange, ...]


class ReadTally:
    """Counts the files and bytes that were read, and pauses after each piece."""

    def __init__(self, pause: Pause | None) -> None:
        self.files = 0
        self.bytes = 0
        self._pause = pause

    def __call__(self, count: int) -> None:
        """Counts bytes that were read."""
        self.bytes += count
        if self._pause is not None:
            self._pause()

    def verified(
        self,
        folder: str,
        log: VerifiedState,
        seconds: float,
        copies: Sequence[ReplicaFinding] = (),
        notes: Sequence[str] = (),
    ) -> VerificationReport:
        """Returns the report of a verification, with these counts."""
        all_notes = (*log.survey.notes, *notes)
        epoch = log.survey.epoch
        counts = (self.files, self.bytes, seconds)
        return VerificationReport(folder, epoch, *counts, log.damage, tuple(copies), all_notes)


def verify(
    path: str,
    *,
    files: Files | None = None,
    machine: HostIdentity | None = None,
    pause: Pause | None = None,
) -> VerificationReport:
    """Reads a log, and reports where it differs from its records; changes nothing.

    Args:
        path: the folder of the log; the log may be open, in this process or in another one.
        pause: called after each piece that was read, to let other threads run.

    Raises:
        DurabilityError: there is no log, or its folder cannot be read.
        TrustError: the folder is a link.
        CorruptLogError: the log has a format that this program does not support.
    """
    files, machine, began = files or Files(), machine or HostIdentity(), time.monotonic()
    folder = admitted_files(files, path)
    tally = ReadTally(pause)
    log = verified_state(files, folder, machine, tally)
    return tally.verified(folder, log, time.monotonic() - began)


def admitted_files(files: Files, path: str) -> str:
    """Returns the real folder of a log, after checks that the folder may be read.

    Raises:
        DurabilityError: the folder contains no log.
        TrustError: the folder or an inner folder is a link, or can be written by other users.
    """
    parent, name = os.path.split(os.path.abspath(path))
    folder = os.path.join(os.path.realpath(parent), name)
    log_folder.check_log_folder(files, folder, HostIdentity(), write=False)
    for inner in FOLDERS.values():
        log_folder.path_inside(files, os.path.join(folder, inner), write=False)
    return folder


def verified_state(
    files: Files, folder: str, machine: HostIdentity, tally: ReadTally
) -> VerifiedState:
    """Reads all files of a log, and again those that seem damaged, in at most `_ROUNDS` rounds."""
    surveyed = survey_log(files, folder, machine, tally)
    tally.files += len(surveyed.held)
    damage = [*surveyed.damage, *of_files(files, folder, surveyed, surveyed.files.values(), tally)]
    for _ in range(_ROUNDS - 1):
        if not damage:
            break
        reached = surveyed.epoch  # because an inconsistent survey may miss the newest frames
        surveyed = survey_log(files, folder, machine, tally)
        surveyed = surveyed._replace(epoch=max(reached, surveyed.epoch))
        suspected = {each.file for each in damage}
        again = [each for name, each in surveyed.files.items() if name in suspected]
        if any(each.digest is None for each in again):  # only a pack has the digest, so read all
            again = [*surveyed.files.values()]
        damage = combined_reports(
            damage,
            [*surveyed.damage, *of_files(files, folder, surveyed, again, tally, count=False)],
        )
    return VerifiedState(surveyed, tuple(damage))


def of_files(
    files: Files,
    folder: str,
    surveyed: LogSurvey,
    expected: Iterable[ExpectedFile],
    tally: ReadTally,
    *,
    count: bool = True,
) -> list[DamagedRange]:
    """Returns the damage of files of rows.

    Files without a digest are checked last, because the packs among the files have their digests.

    Args:
        expected: the files to check.
        count: True if `tally` counts these files.
    """
    damage: list[DamagedRange] = []
    named: dict[str, ExpectedFile] = {}
    alone = []
    for each in expected:
        if each.digest is None:
            alone.append(each)
            continue
        damage += _file_damage(files, folder, surveyed, each, tally, named)
        tally.files += count
    for each in alone:
        damage += _file_damage(files, folder, surveyed, named.get(each.name, each), tally, {})
        tally.files += count
    return damage


def completed_report(
    files: Files, folder: str, surveyed: LogSurvey, tally: Callable[[int], None]
) -> LogSurvey:
    """Reads the packs of a log, and adds to a survey the digests of files that only packs name."""
    if all(each.digest is not None for each in surveyed.files.values()):
        return surveyed
    named: dict[str, ExpectedFile] = {}
    for each in surveyed.files.values():
        if each.name.endswith(PACK):
            with suppress(NosyncError, *CRAFTED):  # skips damaged packs
                check_item(files, path_of_rows(folder, each.name), each, tally, named)
    known = {
        name: named.get(name, each) if each.digest is None else each
        for name, each in surveyed.files.items()
    }
    return surveyed._replace(files=known)


def _file_damage(
    files: Files,
    folder: str,
    surveyed: LogSurvey,
    each: ExpectedFile,
    tally: ReadTally,
    named: dict[str, ExpectedFile],
) -> list[DamagedRange]:
    """Returns the damage of one file; if it is an intact pack, adds the files in it to `named`."""
    try:
        flaws = check_item(files, path_of_rows(folder, each.name), each, tally, named)
    except DurabilityError as error:
        flaws = [FileDamage(str(error))]
    except (CorruptLogError, *CRAFTED) as error:
        flaws = [FileDamage(f"its references to other files are invalid: {error}")]
    return [damage_of(each, flaw, surveyed.stages) for flaw in flaws]


def check_item(
    files: Files,
    path: str,
    each: ExpectedFile,
    tally: Callable[[int], None],
    named: dict[str, ExpectedFile] | None = None,
) -> list[FileDamage]:
    """Returns the damage of a file at any path: the log's own, or a copy that may replace it.

    Args:
        named: receives the files that an intact pack names; `None` ignores them.
    """
    with closing(files.open(path)) as file:

        def read(offset: int, size: int) -> bytes:
            data = file.read_at(offset, size)
            tally(len(data))
            return data

        size = file.size()
        flaws = rows_damage(read, size, each)
        if named is not None and not flaws and each.name.endswith(PACK):
            for trace, epoch, ref in checksums.parts_named_by(read, size):
                epochs = range(epoch, epoch + 1)
                part = each._replace(
                    name=ref.path,
                    size=ref.size_bytes,
                    digest=ref.digest,
                    traces=frozenset((trace,)),
                    epochs=epochs,
                )
                known = named.get(ref.path)
                named[ref.path] = part if known is None else known.joined(part)
        return flaws


def path_of_rows(folder: str, name: str) -> str:
    """Returns the path of a file of rows in a log's folder."""
    return checked_path_within(
        os.path.join(folder, FOLDERS[PACK if name.endswith(PACK) else PART]), name
    )


def damage_of(each: ExpectedFile, flaw: FileDamage, stages: Mapping[int, str]) -> DamagedRange:
    """Returns the reported damage for a flaw, with the stage if only one stage is affected."""
    numbers = each.traces if flaw.trace is None else {flaw.trace}
    names = {stages.get(number, f"trace {number}") for number in numbers}
    known = {name for name in names if not name.startswith("trace ")} or names
    return DamagedRange(each.name, flaw.why, known.pop() if len(known) == 1 else None, each.epochs)


Prove = Callable[[Files, str, Counted], str]


class ImmutableFile(NamedTuple):
    """A file that does not change any more.

    Attributes:
        name: the name of the file in the log's folder, or in the inner folder for its kind.
        size: the number of its first bytes that are part of the log. None if the file is damaged
            and does not determine the size: then all bytes of a copy count.
        prove: returns the damage of the file at a path; empty if it is intact.
        current: True if an up-to-date replica has the file as well.
        after: the log offset from which a replica must hold the file; 0 if it is optional.
        framed: True if a frame names the file. False if only a checkpoint names it: then replicas
            with that checkpoint have it.
    """

    name: str
    size: int | None
    prove: Prove
    current: bool
    after: int
    framed: bool = True


def immutable_files(surveyed: LogSurvey) -> dict[str, ImmutableFile]:
    """Returns the immutable files of a log by name: rows, then checkpoints, then segments."""
    owed = surveyed.owed
    checkable = [each for each in surveyed.files.values() if each.digest is not None]
    named = [_rows_file(each.with_required_offset(owed), owed.numbers) for each in checkable]
    states = [each for each in surveyed.held if checkpoint.checkpoint_names([each.name])]
    named += [
        ImmutableFile(
            each.name, each.size, _checkpoint_check(each.name), each.name == surveyed.state, 0
        )
        for each in states
    ]
    hurt = checkpoint.checkpoint_names([each.file for each in surveyed.damage])
    named += [ImmutableFile(name, None, _checkpoint_check(name), True, 0) for name in hurt]
    for one, after in pairwise(surveyed.segments):
        if after.before == one.key:
            size = one.local(after.start.offset)
            named.append(ImmutableFile(one.name, size, _segment_check(one, after), False, 0))
    keys = {one.key for one in surveyed.segments}
    for after in surveyed.segments:
        if after.before is not None and after.before not in keys:
            name = segments.file_name(*after.before)
            if any(each.file == name for each in surveyed.damage):
                named.append(ImmutableFile(name, None, _segment_check(None, after), False, 0))
    return {each.name: each for each in named}


def _rows_file(each: ExpectedFile, local: AbstractSet[int]) -> ImmutableFile:
    def prove(files: Files, path: str, counted: Counted) -> str:
        return "; ".join(flaw.why for flaw in check_item(files, path, each, counted))

    current = each.current and not (each.traces and each.traces <= local)
    return ImmutableFile(each.name, each.size or 0, prove, current, each.after, each.framed)


def _checkpoint_check(name: str) -> Prove:
    def prove(files: Files, path: str, counted: Counted) -> str:
        data = files.read(path)
        counted(len(data))
        return checkpoint_damage(data, name, path)

    return prove


def _segment_check(recorded: Segment | None, successor: Segment) -> Prove:
    """Returns the check of a segment; `recorded` is None if the local header is damaged."""

    def prove(files: Files, path: str, counted: Counted) -> str:
        with closing(files.open(path)) as file:

            def read(offset: int, size: int) -> bytes:
                data = file.read_at(offset, size)
                counted(len(data))
                return data

            return closed_segment_damage(read, recorded, successor)

    return prove
