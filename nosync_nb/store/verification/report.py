"""The result of a verification, for programs and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from nosync_nb.errors import one_line

CopyState = Literal["level", "behind", "differs", "unreachable"]


class DamagedRange(NamedTuple):
    """Bytes that differ from those that were written.

    Attributes:
        file: the name of the file in the log's folder, or in one of the inner folders.
        what: the kind of damage.
        stage: the stage whose rows the file contains; None if there are several, or if unknown.
        epochs: the epochs in the file, or the damaged epochs of a segment; None if unknown.
    """

    file: str
    what: str
    stage: str | None = None
    epochs: range | None = None

    def __str__(self) -> str:
        of = [f"stage '{self.stage}'" if self.stage else "", findings_text(self.epochs)]
        of = [each for each in of if each]
        return one_line(f"{self.file}{' (' + ', '.join(of) + ')' if of else ''}: {self.what}")


class ReplicaFinding(NamedTuple):
    """The result of the verification of a replica.

    Attributes:
        url: the URL of the replica.
        state: `level`; `behind` if the last commits are missing; `differs` if files differ, which
            `damage` lists; or `unreachable`, for the reason in `why`.
        epoch: the last epoch of the replica; None if unknown.
        damage: the damage of the replica's files.
        why: the reason for the state; empty if there is none to report.
    """

    url: str
    state: CopyState
    epoch: int | None = None
    damage: tuple[DamagedRange, ...] = ()
    why: str = ""

    def __str__(self) -> str:
        upto = "" if self.epoch is None else f", up to epoch {self.epoch}"
        return one_line(f"{self.url}: {self.state}{upto}{': ' + self.why if self.why else ''}")


class VerificationReport(NamedTuple):
    """The result of a verification.

    Attributes:
        path: the log's folder.
        epoch: the last epoch of the log.
        files, bytes: the number of files and bytes that were read from this disk; reads at replicas
            are not counted.
        seconds: the duration in seconds.
        damage: the damage of the log's own files; empty if all are intact.
        replicas: the result for each replica, in the order of the settings.
        notes: remarks that are not damage.
    """

    path: str
    epoch: int
    files: int
    bytes: int
    seconds: float
    damage: tuple[DamagedRange, ...] = ()
    replicas: tuple[ReplicaFinding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """True if nothing is damaged, here or at a replica that answered."""
        return not self.damage and all(each.state != "differs" for each in self.replicas)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        summary = "whole" if self.whole else "damaged"
        if self.damage:
            hit = len({each.file for each in self.damage})
            summary = f"damaged in {hit} file{'s' if hit != 1 else ''}"
        lines = [
            one_line(
                f"{self.path}: {summary}, epoch {self.epoch}; {self.files} files with"
                f" {self.bytes:,} bytes read in {self.seconds:.1f} s"
            ),
            *(f"  {each}" for each in self.damage),
        ]
        for each in self.replicas:
            lines += [f"  {each}", *(f"    {one}" for one in each.damage)]
        return "\n".join([*lines, *(f"  {one_line(note)}" for note in self.notes)])


def findings_text(epochs: range | None) -> str:
    """Returns a range of epochs in words; empty if the epochs are unknown."""
    if not epochs:
        return ""
    if len(epochs) == 1:
        return f"epoch {epochs.start}"
    return f"epochs {epochs.start} to {epochs.stop - 1}"


def combined_reports(
    damage: Sequence[DamagedRange], again: Sequence[DamagedRange]
) -> list[DamagedRange]:
    """Returns the damage that the second report confirms: its entries for files in the first."""
    files = {each.file for each in damage}
    return [each for each in again if each.file in files]
