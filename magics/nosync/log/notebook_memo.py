"""Memo: what a notebook remembers across kernels, in `notebook.json` beside its log.

Plain variables do not come back; their names and cells are here, so that the report can say so. Of
a cell that binds what sounds like a secret nothing but names is written. Imports do come back, when
a cell mentions them, and so does Spark as it was set up: these are code, or name some, so they are
signed with the user's key and for this folder; what another one wrote is not believed. It is no
part of the log: without it nothing is lost but words of the report.
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
_TELLINGS_MAX = 2


class RunningCell(NamedTuple):
    """A cell that runs.

    Attributes:
        cell: which one, for people.
        epoch: the last one before it.
        repeatable: it may be run again without inserting anything twice, as far as can be seen.
    """

    cell: str
    epoch: int
    repeatable: bool

    def told(self, now: int) -> str:
        """What became of it, as the session goes on from epoch `now`, and what to do."""
        stand = now - self.epoch
        if stand <= 0:
            return f"{self.cell} — nothing of it was committed: run it again"
        which = f"epoch {now}" if stand == 1 else f"epochs {self.epoch + 1} to {now}"
        again = "run it again" if self.repeatable else "run it again, but its inserts have no once="
        return f"{self.cell} — {which} of it stand{'s' if stand == 1 else ''}: {again}"


@dataclass
class NotebookMemo:
    """What `notebook.json` says.

    attempts: recoveries begun and not finished; two mean safe mode.
    names: plain variables -> the cell that bound them.
    aliases: other names of stages and inputs -> their names.
    imports: names of modules, or out of them -> the statement that imports each.
    told: plain variables -> in how many reports they were missed already.
    running: the cell that runs, the epoch before it, and whether it may be run again.
    spark: a Spark session was in use.
    conf: the settings by which it starts again; empty: only who made it can.
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
        """Reads the file; a missing or damaged one, or what is no file, is an empty memo."""
        from nosync_nb.files.filesystem import Files

        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError, AttributeError):
            known = json.loads(Files().read(str(folder / MEMO), most=_MOST_BYTES))
            names, aliases, imports, conf = (
                {str(name): str(told) for name, told in dict(known.get(each, {})).items()}
                for each in ("names", "aliases", "imports", "conf")
            )
            told = {str(name): int(times) for name, times in dict(known.get("told", {})).items()}
            signatures = (known.get("signed"), known.get("moves"))
            if not any(_believed(folder, imports, conf, each) for each in signatures):
                imports, conf = {}, {}
            running = known.get("running")
            if running is not None:
                running = RunningCell(str(running[0]), int(running[1]), bool(running[2]))
            spark = bool(known.get("spark"))
            attempts = int(known["attempts"])
            return cls(attempts, names, aliases, imports, told, running, spark, conf)
        return cls()

    def write(self, folder: Path, *, moves: Path | None = None) -> None:
        """Replaces the file; whole or not at all. A folder that refuses is left alone.

        IMPORTANT: only after the folder was admitted (`place.prepare`).

        Args:
            moves: the path to which the folder will be renamed. The memo is signed for both, so
                that it is believed before and after the rename.
        """
        from nosync_nb.files.filesystem import Files

        for names in (self.names, self.aliases, self.imports):
            while len(names) > _MOST_NAMES:
                del names[next(iter(names))]
        with suppress(OSError):
            signed = _signature(folder, self.imports, self.conf)
            known = {**asdict(self), "signed": signed}
            if moves is not None:
                known["moves"] = _signature(moves, self.imports, self.conf)
            text = json.dumps(known).encode()
            Files().replace(str(folder / MEMO), text, sync=False)

    @contextmanager
    def attempt(self, folder: Path, *, write: bool) -> Iterator[None]:
        """Notes a recovery while it runs: only a dead kernel leaves its attempt behind.

        An error that can be shown is no crash. Nothing is written unless `write`.
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
        """What was remembered was another notebook's."""
        for names in (self.names, self.aliases, self.imports, self.told, self.conf):
            names.clear()
        self.running = None

    def begins(self, cell: RunningCell) -> None:
        """A cell begins."""
        self.running = cell

    def ends(self) -> RunningCell | None:
        """No cell runs any more; the one that did."""
        ran, self.running = self.running, None
        return ran

    def used_spark(self, conf: Mapping[str, str]) -> None:
        """A Spark session of such settings is in use."""
        self.spark, self.conf = True, dict(conf)

    def join(self, other: NotebookMemo, there: Collection[str]) -> None:
        """Takes what cells of this kernel bound, those names that are still there."""
        for name, text in other.names.items():
            if name in there:
                self.bound(name)
                self.names[name] = text
        for name, text in other.imports.items():
            if name in there:
                self.bound(name)
                self.imports[name] = text

    def bound(self, name: str) -> None:
        """A name is something else by now."""
        for names in (self.names, self.aliases, self.imports, self.told):
            names.pop(name, None)

    def missed(self, names: Mapping[str, Any]) -> None:
        """Names were told as missing. Those that nobody bound again after that are let go."""
        for name in names:
            self.told[name] = self.told.get(name, 0) + 1
            if self.told[name] > _TELLINGS_MAX:
                self.bound(name)


def _signature(folder: Path, imports: Mapping[str, str], conf: Mapping[str, str]) -> str:
    """What only this user can say of these, for their folder; empty if there is no key."""
    from nosync_nb.collections.functions import signing
    from nosync_nb.errors import NosyncError

    try:
        key = signing.existing_user_key() if imports or conf else None
    except NosyncError:
        key = None
    if key is None:
        return ""
    said: list[Any] = [str(folder), sorted(imports.items())]
    text = json.dumps([*said, sorted(conf.items())] if conf else said).encode()
    return hashlib.blake2b(text, key=key[:64], person=b"nosync imports").hexdigest()


def _believed(
    folder: Path, imports: Mapping[str, str], conf: Mapping[str, str], signed: object
) -> bool:
    own = _signature(folder, imports, conf)
    same = bool(own) and isinstance(signed, str) and hmac.compare_digest(own, signed)
    return same and all(map(is_import, imports.values()))
