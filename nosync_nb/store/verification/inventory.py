"""Lists the files of a log that do not change any more, with a check for each.

A file of rows is checked by its digest in the log, a checkpoint by its own checksums. A segment is
checked by its successor, whose header has the digest of its last frame. The last segment still
grows and is not listed. So a copy of a file can be checked against the log before it replaces the
file.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import checkpoint, segments
from nosync_nb.store.log.segments import Segment
from nosync_nb.store.records.file_references import ExpectedFile
from nosync_nb.store.verification.file_checks import checkpoint_damage, closed_segment_damage
from nosync_nb.store.verification.survey import Counted, LogSurvey
from nosync_nb.store.verification.verify import check_item

Prove = Callable[[Files, str, Counted], str]


class ImmutableFile(NamedTuple):
    """A file that does not change any more.

    Attributes:
        name: in the log's folder, or in the inner one for its kind.
        size: how many bytes of it count, from the first on; None: the size of the copy, because the
            damaged file does not determine it.
        prove: returns the damage of the file at a path; empty: it is intact.
        current: up-to-date replicas have it as well.
        after: log offset from which a replica must hold this file; 0 = optional.
        framed: True if a frame names it; else it is named by a checkpoint alone, and replicas with
            that checkpoint have it.
    """

    name: str
    size: int | None
    prove: Prove
    current: bool
    after: int
    framed: bool = True


def immutable_files(surveyed: LogSurvey) -> dict[str, ImmutableFile]:
    """Returns the files of a log that can be checked, by name: rows, then checkpoints, segments."""
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
    """Returns the check of a segment; `recorded` is None if its header is damaged here."""

    def prove(files: Files, path: str, counted: Counted) -> str:
        with closing(files.open(path)) as file:

            def read(offset: int, size: int) -> bytes:
                data = file.read_at(offset, size)
                counted(len(data))
                return data

            return closed_segment_damage(read, recorded, successor)

    return prove
