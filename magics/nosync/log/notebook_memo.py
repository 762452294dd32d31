"""Stores the facts of a notebook that outlive its kernel, in `notebook.json` beside its log.

Plain variables are not restored. The memo has their names and cells, so that the recovery report
can list them. The line of a cell that suggests a secret is omitted. Imports are restored when a
cell mentions them, and so is a Spark session with its settings. Both can run code, so they are
signed with the user's key for this folder, and entries without a valid signature are ignored. The
memo is not part of the log: if it is lost, no data is lost.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nosync.cells.source import is_import
from nosync.log.location import MEMO

_MOST_NAMES = 200
_MOST_BYTES = 1 << 20
_REPORTS_MAX = 2


class RunningCell(NamedTuple):
    """The running cell of a kernel.

    Attributes:
        cell: the description of the cell, such as `In[3]: total = 5`.
        epoch: the last epoch before the cell.
        repeatable: True if running the cell again inserts no row twice; see `CellSource`.
    """

    cell: str
    epoch: int
    repeatable: bool

    def outcome_text(self, now: int) -> str:
        """Returns a message about the epochs that the cell committed before its kernel died.

        Args:
            now: the last epoch of the session after recovery.
        """
        stand = now - self.epoch
        if stand <= 0:
            return f"{self.cell} — nothing was committed: run it again"
        which = f"epoch {now} is" if stand == 1 else f"epochs {self.epoch + 1} to {now} are"
        advice = (
            "run it again"
            if self.repeatable
            else "its inserts have no once=, so they are repeated if you run it again"
        )
        return f"{self.cell} — {which} committed: {advice}"


@dataclass
class NotebookMemo:
    """The content of `notebook.json`.

    Attributes:
        attempts: the number of recoveries that began and did not finish; two mean safe mode.
        names: plain variables, each with the cell that bound it.
        aliases: variables for stages and inputs of other names, each with that name.
        imports: modules, and names imported from modules, each with its import statement.
        told: plain variables, each with the number of reports that listed it as missing.
        running: the running cell; None between cells.
        spark: True if a Spark session was in use.
        conf: the settings for starting that session again; empty if only the user can start it.
    """

    attempts: int = 0
    names: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    running: RunningCell | None = None
    spark: bool = False
    conf: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> NotebookMemo:
        """Reads the memo beside a log; it is empty if the file is missing or damaged."""
        from nosync_nb.log_folders import Files

        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError, AttributeError):
            known = json.loads(Files().read(str(folder / MEMO), most=_MOST_BYTES))
            names, aliases, imports, conf = (
                {str(name): str(told) for name, told in dict(known.get(each, {})).items()}
                for each in ("names", "aliases", "imports", "conf")
            )
            told = {str(name): int(times) for name, times in dict(known.get("told", {})).items()}
            signatures = (known.get("signed"), known.get("moves"))
            if not any(_is_signed(folder, imports, conf, each) for each in signatures):
                imports, conf = {}, {}
            running = known.get("running")
            if running is not None:
                running = RunningCell(str(running[0]), int(running[1]), bool(running[2]))
            spark = bool(known.get("spark"))
            attempts = int(known["attempts"])
            return cls(attempts, names, aliases, imports, told, running, spark, conf)
        return cls()

    def write(self, folder: Path, *, moves: Path | None = None) -> None:
        """Replaces the file atomically. A folder that cannot be written is skipped.

        IMPORTANT: only after the folder was admitted (`location.prepare_folder`).

        Args:
            moves: the path to which the folder will be renamed. The memo is signed for both, so
                that it is valid before and after the rename.
        """
        from nosync_nb.log_folders import Files

        for names in (self.names, self.aliases, self.imports):
            while len(names) > _MOST_NAMES:
                del names[next(iter(names))]
        with suppress(OSError):
            signed = _signature(folder, self.imports, self.conf)
            data = {**asdict(self), "signed": signed}
            if moves is not None:
                data["moves"] = _signature(moves, self.imports, self.conf)
            text = json.dumps(data).encode()
            Files().replace(str(folder / MEMO), text, sync=False)

    @contextmanager
    def attempt(self, folder: Path, *, write: bool) -> Iterator[None]:
        """Records the block as an attempt of a recovery; removes the attempt when the block ends.

        So only a kernel that dies leaves an attempt behind; an error does not. Nothing is written
        unless `write`.
        """
        self.attempts += 1
        if write:
            self.write(folder)
        try:
            yield
        finally:
            self.attempts = 0
            if write:
                self.write(folder)

    def forget(self) -> None:
        """Clears the memo, because it was another notebook's."""
        for names in (self.names, self.aliases, self.imports, self.told, self.conf):
            names.clear()
        self.running = None

    def begins(self, cell: RunningCell) -> None:
        """Records the running cell."""
        self.running = cell

    def ends(self) -> RunningCell | None:
        """Removes the running cell from the memo and returns it."""
        ran, self.running = self.running, None
        return ran

    def used_spark(self, conf: Mapping[str, str]) -> None:
        """Records that a Spark session with these settings is in use."""
        self.spark, self.conf = True, dict(conf)

    def join(self, other: NotebookMemo, there: Collection[str]) -> None:
        """Copies the names and imports of another memo that are still bound.

        Args:
            other: the memo of the previous log of this kernel.
            there: the names that are bound now.
        """
        for name, text in other.names.items():
            if name in there:
                self.bound(name)
                self.names[name] = text
        for name, text in other.imports.items():
            if name in there:
                self.bound(name)
                self.imports[name] = text

    def bound(self, name: str) -> None:
        """Removes a name from the memo, because its value changed."""
        for names in (self.names, self.aliases, self.imports, self.told):
            names.pop(name, None)

    def missed(self, names: Mapping[str, Any]) -> None:
        """Counts a report of missing names; removes a name at its third report."""
        for name in names:
            self.told[name] = self.told.get(name, 0) + 1
            if self.told[name] > _REPORTS_MAX:
                self.bound(name)


def _signature(folder: Path, imports: Mapping[str, str], conf: Mapping[str, str]) -> str:
    """Returns a signature of the entries and their folder; empty without entries or a key."""
    from nosync_nb.errors import NosyncError
    from nosync_nb.log_folders import existing_user_key

    try:
        key = existing_user_key() if imports or conf else None
    except NosyncError:
        key = None
    if key is None:
        return ""
    content: list[Any] = [str(folder), sorted(imports.items())]
    text = json.dumps([*content, sorted(conf.items())] if conf else content).encode()
    return hashlib.blake2b(text, key=key[:64], person=b"nosync imports").hexdigest()


def _is_signed(
    folder: Path, imports: Mapping[str, str], conf: Mapping[str, str], signed: object
) -> bool:
    expected = _signature(folder, imports, conf)
    same = bool(expected) and isinstance(signed, str) and hmac.compare_digest(expected, signed)
    return same and all(map(is_import, imports.values()))
