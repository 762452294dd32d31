"""The reports of an opening (what it recovered and lost) and of a definition.

Recovery reads traces from the log, and never computes them again. Only a stage whose functions were
not restored cannot continue: it is *stale*. It stays readable at its last epoch until its cell runs
again. Losses are always reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from nosync_nb.errors import visible

READ, EXTEND, RECOMPUTE, STALE = "read", "extend", "recompute", "stale"

NAMES_MAX = 12
"""Names listed in a line; the rest is counted."""

CELLS_MAX = 8
"""Cells whose lost names are listed; the rest is counted."""


@dataclass
class RecoveryReport:
    """What opening a session did; prints as text; a notebook shows a table.

    Attributes:
        fresh: True if the log is new.
        clean: True if the last owner closed it properly.
        resumed_at: the epoch that the session continues from.
        lost: epochs that had been committed in memory and are lost.
        uncertain: by stage and input, the first epoch that may be lost, because too few replicas of
            a lost log could be read; empty if all safe epochs were recovered.
        stages: how each stage was recovered: read, extend, recompute or stale.
        reasons: why stages are stale, were extended or recomputed.
        recomputed: stage-epochs that were executed for the recovery.
        running: the cell of a notebook that ran when its kernel ended, and which of its effects
            remain.
        spark: what becomes of the Spark session that a notebook used.
        inputs: the inputs that were recovered.
        not_restored: plain names of the notebook, with the cells that bound them.
        seconds: time by phase.
        notes: other remarks, such as a torn last frame.

    Examples:
        >>> session.close()
        >>> session = nosync.open("flights.nosync")
        >>> report = session.recovery
        >>> report.clean, report.resumed_at, report.lost
        (True, 1, [])
    """

    fresh: bool = True
    clean: bool = True
    resumed_at: int = 0
    lost: list[int] = field(default_factory=list)
    uncertain: dict[str, int] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    recomputed: int = 0
    running: str = ""
    spark: str = ""
    inputs: list[str] = field(default_factory=list)
    not_restored: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Adds a remark."""
        self.notes.append(text)

    def lacks(self, names: dict[str, str], *, running: str = "", spark: str = "") -> None:
        """Sets the plain names of the notebook that were not restored, with their cells.

        Args:
            running: the cell that ran when the kernel ended, and what to do about it.
            spark: what becomes of its Spark session.
        """
        self.not_restored, self.running, self.spark = names, running, spark

    def gap(self, stages: Iterable[str]) -> None:
        """Records that later epochs of these stages and inputs may be lost."""
        self.uncertain = dict.fromkeys(stages, self.resumed_at + 1)

    @property
    def doubt(self) -> str:
        """A sentence on the epochs that may be lost; empty if none may be.

        Examples:
            >>> session.recovery.doubt
            ''
        """
        if not self.uncertain:
            return ""
        first = min(self.uncertain.values())
        return (
            f"epoch {first} and later, if any, of {listed_names([*self.uncertain])}: too few"
            " replicas could be read"
        )

    def took(self, verify: float, read: float, restore: float) -> None:
        """Sets the seconds of each phase."""
        self.seconds = {"fence and verify": verify, "read": read, "restore": restore}

    def restored(self, stages: dict[str, str], reasons: dict[str, str]) -> None:
        """Sets how each stage was recovered, and why some are stale."""
        self.stages, self.reasons = stages, reasons

    def came_back(self, name: str, how: str, why: str) -> None:
        """Sets how a stage with missing data was recovered, and the reason."""
        self.stages[name], self.reasons[name] = how, why

    def remembered(self, names: Iterable[str], why: str) -> None:
        """Records that stages in memory were recomputed."""
        for name in names:
            self.came_back(name, RECOMPUTE, why)

    def regained(self, epochs: int) -> None:
        """Adds the stage-epochs that were executed to rebuild missing data."""
        self.recomputed += epochs

    def resumed(
        self,
        extended: AbstractSet[str],
        anew: Collection[str],
        missed: Iterable[Mapping[str, object]],
    ) -> None:
        """Records how stale stages continue.

        Args:
            extended: names of the stages that caught up.
            anew: names of the stages that were recomputed.
            missed: for each epoch that was run to catch up, the stages that ran.
        """
        stale = {name for name, kind in self.stages.items() if kind == STALE}
        self.stages.update(dict.fromkeys(stale & extended, EXTEND))
        self.stages.update(dict.fromkeys(stale.intersection(anew), RECOMPUTE))
        self.recomputed += sum(len(work.keys() & stale) for work in missed)

    @property
    def title(self) -> str:
        """The report in a line.

        Examples:
            >>> session.recovery.title
            'new session: nothing to recover'
        """
        if self.fresh:
            return "new session: nothing to recover"
        how = "closed properly" if self.clean else "not closed properly"
        if self.lost:
            how += f", {counted_noun(len(self.lost), 'epoch')} lost"
        took = _seconds_text(sum(self.seconds.values()))
        return f"recovered at epoch {self.resumed_at} in {took} ({how})"

    def facts(self) -> list[tuple[str, str]]:
        """Returns the lines below the title, each with its heading.

        Examples:
            >>> session.close()
            >>> session = nosync.open("flights.nosync")
            >>> dict(session.recovery.facts())["read"]
            'airlines, flights, links, late'
        """
        if self.fresh:
            return [("note", each) for each in self.notes]
        facts = [("running", self.running)]
        if self.lost:
            first, last = self.lost[0], self.lost[-1]
            which = f"epoch {first}" if first == last else f"epochs {first} to {last}"
            facts.append(("lost", f"{which}: committed, but not yet on disk when the power failed"))
        facts.append(("uncertain", self.doubt))
        for name, kind in self.stages.items():
            if kind == STALE:
                facts.append((STALE, f"{name}: {self.reasons.get(name, 'run its cell')}"))
        facts += [("not restored", text) for text in self._lost_names()]
        for kind in (READ, EXTEND, RECOMPUTE):
            names = [*self.inputs] if kind == READ else []
            names += [name for name, each in self.stages.items() if each == kind]
            plain = [name for name in names if name not in self.reasons]
            if plain:
                facts.append((kind, listed_names(plain)))
            facts += [(kind, f"{n}: {self.reasons[n]}") for n in names if n in self.reasons]
        facts.append(("Spark", self.spark))
        facts.append(
            (
                "recomputed",
                counted_noun(self.recomputed, "stage-epoch")
                if self.recomputed or RECOMPUTE in self.stages.values()
                else "nothing",
            )
        )
        facts += [("note", each) for each in self.notes]
        facts.append(
            ("time", ", ".join(f"{k} {_seconds_text(v)}" for k, v in self.seconds.items()))
        )
        return [(what, text) for what, text in facts if text]

    def _lost_names(self) -> list[str]:
        """Returns the lost names by the cell that bound them: `a, b — In[3]: a, b = 1, 2`."""
        cells: dict[str, list[str]] = {}
        for name, cell in self.not_restored.items():
            cells.setdefault(cell, []).append(name)
        lines = [f"{listed_names(names)} — {cell}" for cell, names in cells.items()]
        more = len(lines) - CELLS_MAX
        if more <= 0:
            return lines
        return [*lines[-CELLS_MAX:], f"and the results of {counted_noun(more, 'cell')} before"]

    def __str__(self) -> str:
        lines = [f"NoSync: {self.title}"]
        last = ""
        for what, text in self.facts():
            lines.append(f"  {'' if what == last else what:<12}  {visible(text)}")
            last = what
        return "\n".join(lines)


def listed_names(names: Sequence[str]) -> str:
    """Returns names as one line: the first `NAMES_MAX`, and the number of the others."""
    shown = ", ".join(names[:NAMES_MAX])
    rest = len(names) - NAMES_MAX
    return f"{shown} and {rest} more" if rest > 0 else shown


def counted_noun(count: int, what: str) -> str:
    """Returns a count with its noun, in the plural where needed."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _seconds_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


class StageReport(NamedTuple):
    """The result of defining a stage.

    Attributes:
        status: new, unchanged, changed, followed (a stage that it reads has changed), resumed,
            extended (resumed, and it caught up on the missed epochs) or stale.
        rows: its current rows.
        seconds: the time to compute it.
        hint: what the user may want to do next.
    """

    name: str
    status: str
    rows: int
    epoch: int
    seconds: float
    placement: str
    durability: str
    version: int
    hint: str | None = None
