"""Binds the variables of the notebook that a session restores, and records those it cannot.

After a restart, inputs and stages are bound to their names and aliases, but never replace a value
of the user. Modules, and names imported from them, are restored when a cell mentions them, because
importing all of them would slow down recovery. Other variables are not restored; the memo records
their names and the cells that bound them (see `notebook_memo`).

A cell is recorded in the memo when it begins, and removed when it ends. So the next kernel can
report the cell that ran when this kernel died. Both are small writes beside the log, and never part
of a commit.

Failure: 1. A cell reads the stage `daily` of another log into a variable of that name. 2. The next
cell opens the notebook's own log. 3. The variable has the name of its stage, so it is taken for one
of the notebook's session, and is deleted. Hence a variable is ours only if its collection belongs
to the notebook's session.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nosync.cells.source import CellSource, read_cell
from nosync.log.notebook_memo import NotebookMemo, RunningCell
from nosync_widgets import formats

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nosync_nb import Session

_SHELL = ("In", "Out", "get_ipython", "exit", "quit", "open", "nosync")
_LOOKED_BACK = 200
"""The maximum number of cells that are searched for the one that bound a name."""


class Variables:
    """Manages the variables that NoSync binds in the user's namespace.

    `memo` is the memo of the log in use, with the records of earlier kernels and of this one.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._ours: dict[str, Any] = {}
        self._last_ids: dict[str, int] = {}
        self._session: Session | None = None
        self.memo = NotebookMemo()
        self._folder: Path | None = None
        self._began: RunningCell | None = None
        self._interrupted: RunningCell | None = None

    def bind(self, session: Session) -> list[str]:
        """Binds all collections of a session to their names and aliases.

        A log never binds a name of Python or IPython, such as `print`.

        Returns:
            the names that are not bound, because they are reserved or have a value of the user.
        """
        self._session = session
        refused = []
        for name in [*session.inputs, *session.stages]:
            if not self.set(name, session[name]):
                refused.append(name)
        for alias, name in self.memo.aliases.items():
            if name in session.inputs or name in session.stages:
                self.set(alias, session[name])
        return refused

    def lead(self, before: Session, session: Session) -> list[str]:
        """Rebinds the user's variables from collections of one session to those of another one.

        Returns:
            the variables that cannot be rebound, because their collection has no name, or is not in
            the other session.
        """
        from nosync_nb import Collection

        unbound, names = [], self._shell.user_ns
        for name, value in list(names.items()):
            if name.startswith("_"):
                continue
            if value is before:
                names[name] = session
            elif isinstance(value, Collection) and before.owns(value):
                stage = value.name
                if stage is not None and stage in session:
                    names[name] = session[stage]
                else:
                    unbound.append(name)
        return unbound

    def set(self, name: str, value: Any, *, over: bool = False) -> bool:
        """Binds a name; returns False if it is reserved or has a value of the user.

        Args:
            over: True to bind the name in any case.
        """
        if not over and (is_reserved(name) or not self._is_free(name)):
            return False
        self._shell.user_ns[name] = self._ours[name] = value
        return True

    def _is_free(self, name: str) -> bool:
        names = self._shell.user_ns
        return name not in names or self._is_ours(name, names[name])

    def drop(self, *only: str) -> None:
        """Deletes the given variables, or all, whose current values NoSync has bound."""
        names = self._shell.user_ns
        for name in only or [name for name in names if not name.startswith("_")]:
            if name in names and self._is_ours(name, names[name]):
                self._shell.drop_by_id({name: names[name]})
            self._ours.pop(name, None)
        if not only:
            self._session = None

    def _is_ours(self, name: str, value: Any) -> bool:
        """Returns True if NoSync bound the value, or if it is a collection of that name."""
        return value is self._ours.get(name, self) or self.name_of(value) == name

    def name_of(self, value: Any) -> str | None:
        """Returns the name of a collection of the notebook's session; None for anything else."""
        if self._session is None:
            return None
        from nosync_nb import Collection

        owned = isinstance(value, Collection) and self._session.owns(value)
        return value.name if owned else None

    def bind_spark(self, spark: Any) -> None:
        """Binds the current Spark session as `spark`, unless the user has bound that name."""
        names = self._shell.user_ns
        ours = "spark" in self._ours and names.get("spark") is self._ours["spark"]
        if spark is not None and (ours or "spark" not in names):
            self.set("spark", spark, over=True)

    def lacks_spark(self, cell: CellSource) -> bool:
        """Returns True if a cell uses `spark`, and neither the cell nor the namespace binds it."""
        used = "spark" in cell.names and "spark" not in cell.bound
        return used and "spark" not in self._shell.user_ns

    def switch_memo(self, memo: NotebookMemo, folder: Path | None, *, own: bool) -> None:
        """Switches to the memo of another log, and records the names that cells have bound there.

        Args:
            folder: the folder of that log; None if the memo must not be written.
            own: True if the log was this notebook's before; else the memo is cleared.
        """
        if not own:
            memo.forget()
        interrupted = memo.ends()
        mine = folder is None or interrupted == self._began
        self._interrupted = None if mine else interrupted
        memo.join(self.memo, self._shell.user_ns)
        self.memo, self._folder = memo, folder

    def release_memo(self) -> None:
        """Removes the running cell from the memo when the log is closed."""
        folder, self._folder = self._folder, None
        if self.memo.ends() is not None and folder is not None:
            self.memo.write(folder)

    def record_cell(self, session: Session, cell: CellSource, number: int) -> None:
        """Records a cell in the memo when it begins."""
        if self._folder is not None and cell.text:
            self._began = RunningCell(_label(cell, number), session.now, cell.repeatable)
            self.memo.begins(self._began)
            self.memo.write(self._folder)

    def record_end(self, source: str, number: int) -> None:
        """Records the names that a cell has bound, and that the cell has ended."""
        changed = self._record_names(source, number)
        changed |= self.memo.ends() is not None
        if changed and self._folder is not None:
            self.memo.write(self._folder)

    def _record_names(self, source: str, number: int) -> bool:
        """Records names that a cell bound; returns True if the memo changed."""
        memo, changed = self.memo, False
        for name in [name for name in self._last_ids if name not in self._shell.user_ns]:
            del self._last_ids[name]
            was_recorded = name in memo.names or name in memo.aliases or name in memo.imports
            memo.bound(name)
            changed |= was_recorded
        new = dict(self._new_values())
        if not new:
            return changed
        before = self._cells_before(number)
        cells = [(number, read_cell(source, self._shell.transform_cell))]
        for name, value in new.items():
            self._last_ids[name] = id(value)
            registered = self.name_of(value)
            if registered is not None:
                memo.bound(name)
                if registered != name:
                    memo.aliases[name] = registered
                continue
            while not any(name in cell.bound for _, cell in cells):
                earlier = next(before, None)
                if earlier is None:
                    break
                cells.append(earlier)
            maker = next(((n, c) for n, c in cells if name in c.bound), cells[0])
            self._note(name, value, *maker, [n for n in new if self.name_of(new[n]) is None])
        return True

    def _note(self, name: str, value: Any, number: int, cell: CellSource, plain: list[str]) -> None:
        """Records a plain variable: its import statement, or the cell that bound it."""
        memo = self.memo
        if name in memo.imports and name not in cell.bound:
            return  # NoSync restored it
        memo.bound(name)
        if name in cell.imports:
            memo.imports[name] = cell.imports[name]
        elif isinstance(value, ModuleType):
            memo.imports[name] = f"import {value.__name__} as {name}"
        elif name not in cell.loops:
            names = cell.bound - cell.imports.keys() - cell.loops
            memo.names[name] = _label(cell, number, [each for each in plain if each in names])

    def _cells_before(self, number: int) -> Iterator[tuple[int, CellSource]]:
        """Yields the earlier cells of this kernel, the latest first."""
        sources = self._shell.user_ns.get("In")
        if not isinstance(sources, list):
            return
        for earlier in range(min(number, len(sources)) - 1, max(0, number - _LOOKED_BACK), -1):
            yield earlier, read_cell(str(sources[earlier]), self._shell.transform_cell)

    def bring_back(self, cell: CellSource, say: Callable[[str], None]) -> None:
        """Runs the recorded imports of names that a cell mentions and that are not bound."""
        names = self._shell.user_ns
        for name, statement in [*self.memo.imports.items()]:
            if name in names or is_reserved(name) or name in cell.bound or not cell.mentions(name):
                continue
            found: dict[str, Any] = {}
            try:
                exec(compile(statement, f"<{statement}>", "exec"), found)
            except Exception as error:
                self.memo.bound(name)
                say(f"NoSync: `{statement}` failed: {error}")
                continue
            with suppress(KeyError):
                names[name] = found[name]

    def add_facts(self, session: Session, cell: CellSource) -> None:
        """Adds to a recovery report the missing variables, the interrupted cell, and Spark.

        Args:
            cell: the running cell.
        """
        memo, report, ran = self.memo, session.recovery, self._interrupted
        missed = self._not_restored(cell)
        running = "" if ran is None else ran.outcome_text(report.resumed_at)
        spark = ""
        if memo.spark and session.spark is None:
            views = formats.count(len(session.stages), "view")
            spark = f"starts again with its settings when a cell needs it, with {views} of stages"
            if not memo.conf and "spark" in memo.names:
                spark = f"runs elsewhere: the cell that makes `spark` restores {views} of stages"
        report.lacks(missed, running=running, spark=spark)
        memo.missed(missed)

    def _not_restored(self, cell: CellSource) -> dict[str, str]:
        """Returns the names that earlier kernels bound and this one lacks, with their cells.

        Args:
            cell: the running cell; the names that it binds are not missing.
        """
        names, memo = self._shell.user_ns, self.memo
        return {
            name: made
            for name, made in memo.names.items()
            if name not in names and name not in cell.bound and not (name == "spark" and memo.conf)
        }

    def _new_values(self) -> Iterator[tuple[str, Any]]:
        hidden = self._shell.user_ns_hidden
        for name, value in list(self._shell.user_ns.items()):
            if name.startswith("_") or name in hidden or self._last_ids.get(name) == id(value):
                continue
            if name == "nosync" or (name == "spark" and value is self._ours.get(name)):
                continue
            yield name, value


def is_reserved(name: str) -> bool:
    """Returns True if a name belongs to Python or IPython, so NoSync must not bind it."""
    ours = hasattr(builtins, name) or keyword.iskeyword(name) or name in _SHELL
    return ours or name.startswith("__")


def _label(cell: CellSource, number: int, names: list[str] | tuple[str, ...] = ()) -> str:
    """Describes a cell: `In[3]: total = 5`."""
    line = cell.line(names)
    return f"In[{number}]: {line}" if line else f"In[{number}]"
