"""Surveys the current contents of a log: segments, checkpoints, and the files that they name.

Segments and checkpoints are read and verified during the survey, because only they name the other
files. Each of the other files is listed with its size, its digest, and the stage and the epochs of
its rows.

IMPORTANT: the owner may merge, write checkpoints and delete files meanwhile. Then a survey mixes
several moments, and a file may seem to be missing. It is damaged only if a later survey reports the
same file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store.log import checkpoint, owner, recovery, segments
from nosync_nb.store.log.checkpoint import Checkpoint
from nosync_nb.store.log.fencing import ControlBlock
from nosync_nb.store.log.frames import Frame, Mark
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.log.segments import Chain, Segment
from nosync_nb.store.provenance import ClockContradiction, LabelHistory
from nosync_nb.store.records import file_references as owed
from nosync_nb.store.records import payloads
from nosync_nb.store.records.file_references import (
    ExpectedFile,
    expected_files,
    named_files,
    stages_of,
)
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.verification.file_checks import FrameGap, walk_frames
from nosync_nb.store.verification.report import DamagedRange

KEPT = 2
"""The number of checkpoints that are used. Older ones may be leftovers of a dead process, without
their files.
"""


class PresentFile(NamedTuple):
    """A segment or a checkpoint, and the number of its bytes that are part of the log."""

    name: str
    size: int


class LogSurvey(NamedTuple):
    """The contents of a log.

    Attributes:
        log_id: the unique id of the log.
        files: the files of rows, by name.
        held: segments and checkpoints, the current ones first.
        segments: the segments of the log, ascending.
        state: the name of the newest checkpoint; None if no checkpoint can be read.
        epoch: the last epoch.
        ends: for each commit or rewind since the newest checkpoint, its end offset in the stream of
            frames and its epoch.
        stages: the names of stages, by the numbers of their logs and traces.
        owed: the stages whose files are shipped to replicas last.
        damage: the damage of segments and checkpoints.
        notes: remarks that are not damage.
    """

    log_id: bytes
    files: dict[str, ExpectedFile]
    held: list[PresentFile]
    segments: list[Segment]
    state: str | None
    epoch: int
    ends: list[tuple[int, int]]
    stages: dict[int, str]
    owed: owed.RequirementHistory
    damage: list[DamagedRange]
    notes: list[str]


Counted = Callable[[int], None]
"""Receives the number of bytes that were read."""


def survey_log(files: Files, folder: str, machine: HostIdentity, counted: Counted) -> LogSurvey:
    """Reads the checkpoints and segments of a log.

    Raises:
        DurabilityError: the folder cannot be read.
        CorruptLogError: a part of the log has a format that this program does not support.

    Cost: reads all segments and checkpoints, at 5 us for each frame.

    Memory: the names in the segments and checkpoints.
    """
    return _Surveyor(files, folder, machine, counted).survey()


class _DecodedCheckpoint(NamedTuple):
    """A decoded checkpoint, without its rows."""

    name: str
    state: Checkpoint
    size: int
    epoch: int
    files: list[ExpectedFile]


class _Surveyor:
    """One survey: reads checkpoints and segments, and collects the files, damage and notes."""

    def __init__(self, files: Files, folder: str, machine: HostIdentity, counted: Counted) -> None:
        self._files, self._folder, self._machine = files, folder, machine
        self._counted = counted
        self._named: dict[str, ExpectedFile] = {}
        self._held: list[PresentFile] = []
        self._stages: dict[int, str] = {}
        self._owed = owed.RequirementHistory()
        self._damage: list[DamagedRange] = []
        self._notes: list[str] = []
        self._ends: list[tuple[int, int]] = []
        self._following = LabelHistory(None)
        self._epoch: int | None = None
        self._last = 0
        self._since = self._first = 0  # the end offsets of the oldest and the newest checkpoint
        self._published: int | None = None  # the end of the published stream, if known

    def survey(self) -> LogSurvey:
        self._published, known = self._stream_limits()
        names = self._files.names(self._folder)
        states = [
            stated
            for name in checkpoint.checkpoint_names(names)
            if (stated := self._read_checkpoint(name))
        ]
        since = min((each.state.mark.offset for each in states[:KEPT]), default=0)
        chain = self._linked_segments(names, since)
        path = self._reachable_segments(chain, names)
        unfit = [each for each in states if not self._fits(each.state, path)]
        states = [each for each in states if each not in unfit][:KEPT]
        if states:
            self._first, self._since = states[0].state.mark.offset, states[-1].state.mark.offset
        self._last = states[0].epoch if states else 0
        for stated in states:
            self._held.append(PresentFile(stated.name, stated.size))
            for each in stated.files:
                self._add_file(each._replace(current=stated is states[0]))
        # Without a readable checkpoint the beginning of the log is unknown.
        lost = not states and checkpoint.checkpoint_names(names)
        short = not lost and (not path or path[0].start.offset > since)
        self._read_all(path, chain, known, short=short)
        self._report_unfit(unfit, path)
        return LogSurvey(
            path[-1].log_id if path else b"",
            self._named,
            self._held,
            path,
            states[0].name if states else None,
            self._last,
            self._ends,
            self._stages,
            self._owed,
            self._damage,
            self._notes,
        )

    def _stream_limits(self) -> tuple[int | None, int]:
        """Returns the end of the published stream, None if unknown, and the last durable frame."""
        path = os.path.join(self._folder, "generation")
        known = 0
        recorded = None
        try:
            recorded = owner.read_owner(self._files, self._folder)
            known = recorded.known if recorded else 0
        except CorruptLogError as error:
            self._damage.append(DamagedRange("owner", str(error)))
        try:
            words = ControlBlock(self._files.mapped(path))
        except (CorruptLogError, DurabilityError) as error:
            self._damage.append(DamagedRange("generation", str(error)))
            return None, known
        try:
            generation = words.generation
            if not generation:
                self._damage.append(
                    DamagedRange("generation", "its control block does not match its checksum")
                )
            me = self._machine.identity()
            wrote = recorded.last(generation) if recorded else None
            same = wrote is not None and bool(me.boot) and wrote[:2] == (me.host, me.boot)
            published = words.published(generation) if same else None
            return published, max(known, words.durable(generation) or 0)
        finally:
            words.close()

    def _read_checkpoint(self, name: str) -> _DecodedCheckpoint | None:
        """Reads a checkpoint; records damage and returns None if it is damaged."""
        state = checkpoint.read_checkpoint(self._files, self._folder, name)
        if isinstance(state, str):
            self._damage.append(DamagedRange(name, state.rpartition("is damaged: ")[2]))
            return None
        size = checkpoint.HEADER_BYTES + len(state.payload)
        self._counted(size)
        try:
            with guarded_decoding(f"'{name}'"):
                payload = payloads.decode_payload(state.payload)
                self._stages = {**stages_of(payload.meta), **self._stages}
                self._owed.add_checkpoint_record(owed.requirement_of(payload))
                named = [*expected_files(named_files(payload.meta, {}), state.mark.offset)]
        except CorruptLogError as error:
            self._damage.append(DamagedRange(name, str(error)))
            return None
        return _DecodedCheckpoint(name, state._replace(payload=b""), size, payload.epoch, named)

    def _fits(self, state: Checkpoint, path: Sequence[Segment]) -> bool:
        if not path or state.mark.offset < path[0].start.offset:
            return True  # undecidable: the segment of its frame is damaged, too
        try:
            return recovery.tail_holds(
                self._files, self._folder, Chain([*path], [], None), state.mark
            )
        except DurabilityError:
            return True  # undecidable: the segment is unreadable, which its own check reports

    def _report_unfit(self, unfit: Sequence[_DecodedCheckpoint], path: Sequence[Segment]) -> None:
        """Reports checkpoints that do not belong to the log, unless its frames are damaged."""
        hit = self._damaged_segments()
        for name, state, *_ in unfit:
            if recovery.leftover_files(state, path):
                self._notes.append(f"{name}: ignored, because its writer had been replaced")
            elif not hit:
                self._damage.append(DamagedRange(name, "it belongs to another frame"))

    def _damaged_segments(self) -> list[tuple[int, int]]:
        return segments.segment_names([each.file for each in self._damage])

    def _add_file(self, each: ExpectedFile) -> None:
        listed = self._named.get(each.name)
        self._named[each.name] = each if listed is None else listed.joined(each)

    def _linked_segments(self, names: Sequence[str], since: int) -> Chain:
        """Returns the chain of segments; one without an order if some cannot be read."""
        for key in segments.segment_names(names):
            try:
                segments.read_header(self._files, self._folder, key)
            except DurabilityError as error:
                self._damage.append(DamagedRange(segments.file_name(*key), str(error)))
        listed = [segments.file_name(*key) for key in segments.segment_names(names)]
        hit = [segments.file_name(*key) for key in self._damaged_segments()]
        if hit:
            return Chain([], [name for name in listed if name not in hit], hit[0])
        return segments.linked_segments(self._files, self._folder, names, since=since)

    def _reachable_segments(self, chain: Chain, names: Sequence[str]) -> list[Segment]:
        """Returns the segments of the log, also remaining ones before the oldest checkpoint."""
        if self._damaged_segments():
            return []
        first = chain.live[0].before if chain.live else segments.segment_names(names)[-1:]
        if isinstance(first, list):
            first = first[0] if first else None
        return [*segments.previous_segments(self._files, self._folder, first, 0)[0], *chain.live]

    def _read_all(self, path: Sequence[Segment], chain: Chain, known: int, *, short: bool) -> None:
        """Reads the segments, and decides whether missing frames at the end ever existed.

        Args:
            known: the number of the last frame that is known to have been on disk.
            short: True if the first segment begins after the oldest checkpoint.
        """
        published = self._published
        end = self._read_in_order(path, None if chain.missing is not None else published)
        if published is None:
            judged = (
                self._was_on_disk(path[-1], chain, known) if path else bool(known or chain.detached)
            )
        else:
            judged = chain.missing is not None and (end is None or end.offset < published)
        if chain.missing is None or not (judged or short):
            return
        names = {chain.missing, *chain.detached}
        keys = segments.segment_names(sorted(names))
        headers = {
            key: segments.read_header(self._files, self._folder, key)
            for key in keys
            if key not in self._damaged_segments()
        }
        for key in headers:
            if headers[key] is None:
                what = "it is missing, or its header does not match its checksum"
                self._damage.append(DamagedRange(segments.file_name(*key), what))
        rest = [each for each in headers.values() if each is not None and each not in path]
        newest = bool(rest) and rest[-1].key == keys[-1]
        self._read_in_order(rest, published if newest else None)

    def _read_in_order(self, path: Sequence[Segment], last: int | None) -> Mark | None:
        """Reads segments in order; returns the mark after the last one, None if it is unknown.

        Args:
            last: the offset at which the last segment must end; None if it is unknown.
        """
        end: Mark | None = None
        for index, segment in enumerate(path):
            after = path[index + 1] if index + 1 < len(path) else None
            if end != segment.start:
                self._following.record_missing_frames()
            if end is not None and segment.start != end:
                self._damage.append(DamagedRange(segment.name, "it does not continue the log"))
            follows = after is not None and after.before == segment.key
            stop = last if after is None else after.start.offset if follows else None
            if stop is not None and self._published is not None:
                stop = min(stop, self._published)
            end = self._read_segment(segment, stop)
            end = end if follows else None if after is not None else end
        return end

    def _read_segment(self, segment: Segment, stop: int | None) -> Mark | None:
        """Reads one segment; returns the mark after it, None if the mark is unknown."""
        try:
            with closing(self._files.open(os.path.join(self._folder, segment.name))) as file:
                return self._read_frames(file, segment, stop)
        except DurabilityError as error:
            self._damage.append(DamagedRange(segment.name, str(error)))
            return None

    def _read_frames(self, file: File, segment: Segment, stop: int | None) -> Mark | None:
        def read(offset: int, size: int) -> bytes:
            data = file.read_at(offset, size)
            self._counted(len(data))
            return data

        if read(0, segments.HEADER_BYTES) != segments.encode_header(segment):
            self._damage.append(
                DamagedRange(segment.name, "its header does not match its checksum")
            )
        end: Mark | None = segment.start
        gap: FrameGap | None = None
        upto = segment.start.offset + max(0, file.size() - segments.HEADER_BYTES)
        if self._published is not None:
            upto = min(upto, self._published)  # later bytes are being written
        for each in walk_frames(read, segment, upto if stop is None else stop):
            if isinstance(each, FrameGap):
                self._following.record_missing_frames()
                if each.upto is not None or stop is not None:
                    gap, end = each, None
                continue  # without a known end, `_was_on_disk` decides if the bytes were synced
            epoch = self._process_frame(segment, each)
            if gap is not None:
                self._add_lost_frames(segment, gap, epoch)
                gap = None
            self._epoch = self._epoch if epoch is None else epoch
            end = each.end
        if gap is not None:
            self._add_lost_frames(segment, gap, None)
        size = file.size() if stop is None and end is None else segment.local(stop or 0)
        if stop is None and end is not None:
            size = segment.local(end.offset)
        self._held.append(PresentFile(segment.name, size))
        return end

    def _add_lost_frames(self, segment: Segment, gap: FrameGap, later: int | None) -> None:
        """Records damaged frames as damage; `later` is the first epoch after them, if any."""
        last_epoch = self._epoch
        epochs = None
        if later is not None and last_epoch is not None:
            epochs = range(min(last_epoch + 1, later), later) or range(last_epoch, later)
        elif last_epoch is not None:
            epochs = range(last_epoch + 1, last_epoch + 2)
        what = f"{gap.frames} at byte {segment.local(gap.offset)}: {gap.reason}"
        self._damage.append(DamagedRange(segment.name, what, None, epochs))

    def _process_frame(self, segment: Segment, frame: Frame) -> int | None:
        """Processes the entries of a frame; returns the epoch that it commits, if any."""
        offset = frame.end.offset
        try:
            with guarded_decoding(f"frame {frame.position.seq}"):
                payload = payloads.decode_payload(frame.payload)
                if (requirement := owed.requirement_of(payload)) is not None:
                    self._stages.update(stages_of(payload.meta))
                    self._owed.follow(requirement, offset)
                wrongs = [*self._following.wrong(frame.kind, payload)]
                if offset > self._since:  # else the checkpoints include the frame and its repair
                    self._damage += [self._clock_damage(segment, frame, wrong) for wrong in wrongs]
                    named = named_files({}, payloads.entries_by_log([payload]))
                    current = offset > self._first
                    for each in expected_files(named, offset, current=current, framed=True):
                        self._add_file(each)
        except CorruptLogError as error:
            self._following.record_missing_frames()
            self._damage.append(DamagedRange(segment.name, str(error)))
            return None
        if frame.kind not in (payloads.EPOCH, payloads.REWIND):
            return None
        if offset > self._first:
            self._last = payload.epoch
            self._ends.append((offset, payload.epoch))
        return payload.epoch

    def _clock_damage(
        self, segment: Segment, frame: Frame, wrong: ClockContradiction
    ) -> DamagedRange:
        """Returns the damage for a clock that contradicts the log."""
        names = self._stages
        rows = "itself" if wrong.source == wrong.log else f"'{names.get(wrong.source, '?')}'"
        what = f"frame {frame.position.seq}: its clock names other rows of {rows} than the log has"
        epochs = range(wrong.epoch, wrong.epoch + 1) if wrong.epoch else None
        return DamagedRange(segment.name, what, names.get(wrong.log), epochs)

    def _was_on_disk(self, last: Segment, chain: Chain, known: int) -> bool:
        """Returns True if damaged or missing bytes after the last frame were once on disk."""
        if any(each.file == last.name for each in self._damage):
            return True
        rest = Chain([last], chain.detached, chain.missing)
        try:
            read = recovery.read_tail(self._files, self._folder, rest, last.start, known=known)
            self._notes += read.notes
        except CorruptLogError as error:
            if chain.missing is None:
                epochs = None if self._epoch is None else range(self._epoch + 1, self._epoch + 2)
                self._damage.append(DamagedRange(last.name, str(error), None, epochs))
            return True
        except DurabilityError as error:
            self._damage.append(DamagedRange(last.name, str(error)))
        return False
