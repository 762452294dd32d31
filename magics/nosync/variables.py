"""Binds the variables of the notebook that a session restores, and records those it cannot.

Inputs, stages and their other names are restored after a restart, never over a value of the user.
Modules, and names imported from them, are restored when a cell mentions them: importing them all at
once would make recovery as slow as the slowest of them. Other variables are not restored; the memo
records their names and the cells that made them (see `notebook_memo`).

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
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nosync.cells.source import CellSource, read_cell
from nosync.log.notebook_memo import NotebookMemo

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nosync_nb import Session

_SHELL = ("In", "Out", "get_ipython", "exit", "quit", "open", "nosync")
_LOOKED_BACK = 200
"""The number of cells that are searched for the one that bound a name."""


class Variables:
    """Distinguishes our variables in the user's namespace from the user's own."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._ours: dict[str, Any] = {}
        self._last_ids: dict[str, int] = {}
        self._session: Session | None = None

    def bind(self, session: Session, memo: NotebookMemo) -> list[str]:
        """Binds all collections of a session; returns the names that other values keep.

        A Python built-in name, such as `print`, is never bound by a log.
        """
        self._session = session
        refused = []
        for name in [*session.inputs, *session.stages]:
            if not self.set(name, session[name]):
                refused.append(name)
        for alias, name in memo.aliases.items():
            if name in session.inputs or name in session.stages:
                self.set(alias, session[name])
        return refused

    def lead(self, before: Session, session: Session) -> list[str]:
        """Rebinds names of the user from collections of one session to those of another one.

        Returns:
            the names that cannot be rebound: of collections without a name, or of a stage that does
            not exist.
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
        """Binds one name; refuses if it has a value of the user, unless `over`."""
        if not over and (is_reserved(name) or not self._is_free(name)):
            return False
        self._shell.user_ns[name] = self._ours[name] = value
        return True

    def _is_free(self, name: str) -> bool:
        names = self._shell.user_ns
        return name not in names or self._is_ours(name, names[name])

    def drop(self, *only: str) -> None:
        """Deletes our variables of these names, or all; names with other values stay."""
        names = self._shell.user_ns
        for name in only or [name for name in names if not name.startswith("_")]:
            if name in names and self._is_ours(name, names[name]):
                self._shell.drop_by_id({name: names[name]})
            self._ours.pop(name, None)
        if not only:
            self._session = None

    def _is_ours(self, name: str, value: Any) -> bool:
        """True if we bound it, or if it is our session's collection of that name."""
        return value is self._ours.get(name, self) or self.name_of(value) == name

    def name_of(self, value: Any) -> str | None:
        """Returns the name of a collection of the notebook's session; None for anything else."""
        if self._session is None:
            return None
        from nosync_nb import Collection

        owned = isinstance(value, Collection) and self._session.owns(value)
        return value.name if owned else None

    def bind_spark(self, spark: Any) -> None:
        """Binds the current Spark session as `spark`, if that name is free or ours."""
        names = self._shell.user_ns
        ours = "spark" in self._ours and names.get("spark") is self._ours["spark"]
        if spark is not None and (ours or "spark" not in names):
            self.set("spark", spark, over=True)

    def lacks_spark(self, cell: CellSource) -> bool:
        """Returns True if a cell uses `spark` and it is not bound."""
        used = "spark" in cell.names and "spark" not in cell.bound
        return used and "spark" not in self._shell.user_ns

    def remember(self, memo: NotebookMemo, source: str, number: int) -> bool:
        """Records names that a cell bound; returns True if the memo changed."""
        changed = False
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
            self._note(memo, name, value, *maker, [n for n in new if self.name_of(new[n]) is None])
        return True

    def _note(
        self,
        memo: NotebookMemo,
        name: str,
        value: Any,
        number: int,
        cell: CellSource,
        plain: list[str],
    ) -> None:
        """Records a plain variable: its import statement, or the cell that made it."""
        if name in memo.imports and name not in cell.bound:
            return  # restored by us
        memo.bound(name)
        if name in cell.imports:
            memo.imports[name] = cell.imports[name]
        elif isinstance(value, ModuleType):
            memo.imports[name] = f"import {value.__name__} as {name}"
        elif name not in cell.loops:
            names = cell.bound - cell.imports.keys() - cell.loops
            memo.names[name] = label(cell, number, [each for each in plain if each in names])

    def _cells_before(self, number: int) -> Iterator[tuple[int, CellSource]]:
        """Yields the earlier cells of this kernel, the latest first."""
        sources = self._shell.user_ns.get("In")
        if not isinstance(sources, list):
            return
        for earlier in range(min(number, len(sources)) - 1, max(0, number - _LOOKED_BACK), -1):
            yield earlier, read_cell(str(sources[earlier]), self._shell.transform_cell)

    def bring_back(self, memo: NotebookMemo, cell: CellSource, say: Callable[[str], None]) -> None:
        """Repeats the imports of names that a cell mentions and that are not bound."""
        names = self._shell.user_ns
        for name, statement in [*memo.imports.items()]:
            if name in names or is_reserved(name) or name in cell.bound or not cell.mentions(name):
                continue
            found: dict[str, Any] = {}
            try:
                exec(compile(statement, f"<{statement}>", "exec"), found)
            except Exception as error:
                memo.bound(name)
                say(f"NoSync: `{statement}` failed: {error}")
                continue
            with suppress(KeyError):
                names[name] = found[name]

    def not_restored(self, memo: NotebookMemo, cell: CellSource) -> dict[str, str]:
        """Returns names that earlier kernels bound and this one lacks -> `In[3]: total = 5`.

        Args:
            cell: the running one; the names that it binds are not missing.
        """
        names = self._shell.user_ns
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
    """Returns True if a name belongs to Python or IPython, so that no log may bind it."""
    ours = hasattr(builtins, name) or keyword.iskeyword(name) or name in _SHELL
    return ours or name.startswith("__")


def label(cell: CellSource, number: int, names: list[str] | tuple[str, ...] = ()) -> str:
    """Describes a cell: `In[3]: total = 5`."""
    line = cell.line(names)
    return f"In[{number}]: {line}" if line else f"In[{number}]"
