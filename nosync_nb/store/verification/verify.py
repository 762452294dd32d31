"""Verifying: everything that a log consists of, read once, and what is damaged told.

    survey -> the files of rows -> what was damaged, once more after another survey

A file that is gone, or other than it should be, is looked at again as the log is by then: its owner
may have merged it away. What is damaged each time is damage. So nobody is waited for, and a log
that is in use is verified as well as one that is not.

Cost: every byte is read once; memory for the names of files, and for a piece of one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import FOLDERS, PACK, PART, within
from nosync_nb.store.log import folder as log_folder
from nosync_nb.store.log.owner__machine import Machine
from nosync_nb.store.records.file_references__expected import Expected
from nosync_nb.store.safe_decoding import CRAFTED
from nosync_nb.store.verification.report import CopyFound, Damaged, Verified, together
from nosync_nb.store.verification.survey import Survey, survey
from nosync_nb.trace import checksums
from nosync_nb.trace.checksums import Flaw, Watch

_ROUNDS = 3

Pause = Callable[[], None]


class Looked(NamedTuple):
    """A log as it was found: the last survey, and what was damaged in each of several."""

    survey: Survey
    damage: tuple[Damaged, ...]


class Tally:
    """How much was read, and a rest after each piece of it."""

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
        log: Looked,
        seconds: float,
        copies: Sequence[CopyFound] = (),
        notes: Sequence[str] = (),
    ) -> Verified:
        """What was found, as a value."""
        said = (*log.survey.notes, *notes)
        epoch = log.survey.epoch
        counts = (self.files, self.bytes, seconds)
        return Verified(folder, epoch, *counts, log.damage, tuple(copies), said)


def verify(
    path: str,
    *,
    files: Files | None = None,
    machine: Machine | None = None,
    pause: Pause | None = None,
) -> Verified:
    """Reads a log, and tells what of it is not what was written; changes nothing.

    Args:
        path: its folder, also of a log that is open, here or elsewhere.
        pause: called after each piece that was read, to let others run.

    Raises:
        DurabilityError: there is no log, or its folder cannot be read.
        TrustError: the folder is a link.
        CorruptLogError: it is of another format than this program's.
    """
    files, machine, began = files or Files(), machine or Machine(), time.monotonic()
    folder = admitted(files, path)
    tally = Tally(pause)
    log = looked(files, folder, machine, tally)
    return tally.verified(folder, log, time.monotonic() - began)


def admitted(files: Files, path: str) -> str:
    """The folder of a log that is to be read.

    Raises:
        DurabilityError: it holds no log.
        TrustError: it is a link, or others can write it.
    """
    parent, name = os.path.split(os.path.abspath(path))
    folder = os.path.join(os.path.realpath(parent), name)
    log_folder.admit(files, folder, Machine(), write=False)
    for inner in FOLDERS.values():
        log_folder.inside(files, os.path.join(folder, inner), write=False)
    return folder


def looked(files: Files, folder: str, machine: Machine, tally: Tally) -> Looked:
    """Reads all of a log, and again what seems to be damaged."""
    surveyed = survey(files, folder, machine, tally)
    tally.files += len(surveyed.held)
    damage = [*surveyed.damage, *of_files(files, folder, surveyed, surveyed.files.values(), tally)]
    for _ in range(_ROUNDS - 1):
        if not damage:
            break
        reached = surveyed.epoch  # a mixture of moments may lack the newest frames
        surveyed = survey(files, folder, machine, tally)
        surveyed = surveyed._replace(epoch=max(reached, surveyed.epoch))
        suspected = {each.file for each in damage}
        again = [each for name, each in surveyed.files.items() if name in suspected]
        if any(each.digest is None for each in again):  # which is what packs have
            again = [*surveyed.files.values()]
        damage = together(
            damage,
            [*surveyed.damage, *of_files(files, folder, surveyed, again, tally, count=False)],
        )
    return Looked(surveyed, tuple(damage))


def of_files(
    files: Files,
    folder: str,
    surveyed: Survey,
    expected: Iterable[Expected],
    tally: Tally,
    *,
    count: bool = True,
) -> list[Damaged]:
    """The damage of some files of rows, and of those that packs among them refer to."""
    damage: list[Damaged] = []
    named: dict[str, Expected] = {}
    alone = []
    for each in expected:
        if each.digest is None:
            alone.append(each)
            continue
        damage += _of_file(files, folder, surveyed, each, tally, named)
        tally.files += count
    for each in alone:
        damage += _of_file(files, folder, surveyed, named.get(each.name, each), tally, {})
        tally.files += count
    return damage


def completed(files: Files, folder: str, surveyed: Survey, tally: Callable[[int], None]) -> Survey:
    """A survey with what packs say of the files that they alone name; packs are read for that."""
    if all(each.digest is not None for each in surveyed.files.values()):
        return surveyed
    named: dict[str, Expected] = {}
    for each in surveyed.files.values():
        if each.name.endswith(PACK):
            with suppress(NosyncError, *CRAFTED):  # one that is damaged says nothing
                proved(files, path_of_rows(folder, each.name), each, tally, named)
    known = {
        name: named.get(name, each) if each.digest is None else each
        for name, each in surveyed.files.items()
    }
    return surveyed._replace(files=known)


def _of_file(
    files: Files,
    folder: str,
    surveyed: Survey,
    each: Expected,
    tally: Tally,
    named: dict[str, Expected],
) -> list[Damaged]:
    """The damage of one file; notes what it refers to, if it is a pack and whole."""
    try:
        flaws = proved(files, path_of_rows(folder, each.name), each, tally, named)
    except DurabilityError as error:
        flaws = [Flaw(str(error))]
    except (CorruptLogError, *CRAFTED) as error:
        flaws = [Flaw(f"what it says of other files makes no sense: {error}")]
    return [damage_of(each, flaw, surveyed.stages) for flaw in flaws]


def proved(
    files: Files,
    path: str,
    each: Expected,
    tally: Callable[[int], None],
    named: dict[str, Expected] | None = None,
    watch: Watch | None = None,
) -> list[Flaw]:
    """What is wrong with a file that lies somewhere: here, or a copy that is to take its place."""
    with closing(files.open(path)) as file:

        def read(offset: int, size: int) -> bytes:
            data = file.read_at(offset, size)
            tally(len(data))
            return data

        size = file.size()
        if each.size is not None and size != each.size:
            return [Flaw(f"it has {size} bytes, not {each.size}")]
        flaws = checksums.flaws(each.name, read, size, each.digest, watch)
        if named is not None and not flaws and each.name.endswith(PACK):
            for trace, epoch, ref in checksums.named_by(read, size):
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
    """Where a file of rows lies in a log's folder."""
    return within(os.path.join(folder, FOLDERS[PACK if name.endswith(PACK) else PART]), name)


def damage_of(each: Expected, flaw: Flaw, stages: Mapping[int, str]) -> Damaged:
    """A flaw as people are told of it: with the stage, if all rows that it hits are of one."""
    numbers = each.traces if flaw.trace is None else {flaw.trace}
    names = {stages.get(number, f"trace {number}") for number in numbers}
    known = {name for name in names if not name.startswith("trace ")} or names
    return Damaged(each.name, flaw.why, known.pop() if len(known) == 1 else None, each.epochs)
