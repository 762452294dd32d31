"""The variables of the notebook: those a session brings back, and those it cannot.

Inputs, stages and their other names come back after a restart, never over a value of the user.
Modules, and what is imported out of them, come back when a cell mentions them: importing them all
at once would make recovery as slow as the slowest of them. Other variables do not come back; which
ones, and which cell made them, is remembered (see `memo`).

Failure: 1. A cell reads the stage `daily` of another log into a variable of that name. 2. The next
cell opens the notebook's own log. 3. The variable has the name of its stage, so it is taken for one
of the notebook's session, and is deleted. Hence a variable is ours only if its collection belongs
to the notebook's session.
"""

from __future__ import annotations

import builtins
import keyword
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nosync.cells.source import CellSource, read_cell
from nosync.log.notebook_memo import NotebookMemo

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nosync_nb import Session
    from nosync_nb.collections.session_protocol import SessionProtocol

_SHELL = ("In", "Out", "get_ipython", "exit", "quit", "open", "nosync")
_LOOKED_BACK = 200
"""Cells that are searched for the one that bound a name."""


class Variables:
    """Tells our variables in the user's namespace from the user's own."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._ours: dict[str, Any] = {}
        self._seen: dict[str, int] = {}
        self._host: SessionProtocol | None = None  # of the notebook's session, while there is one

    def bind(self, session: Session, memo: NotebookMemo) -> list[str]:
        """Binds all collections of a session; returns the names that others keep.

        A name of Python's own, such as `print`, is never bound by what a log says.
        """
        from nosync_nb.session.session import owners_of

        self._host = owners_of(session).host
        taken = []
        for name in [*session.inputs, *session.stages]:
            if not self.set(name, session[name]):
                taken.append(name)
        for alias, name in memo.aliases.items():
            if name in session.inputs or name in session.stages:
                self.set(alias, session[name])
        return taken

    def lead(self, before: Session, session: Session) -> list[str]:
        """Hands names of a user that show what a session had to another one of the same log.

        Returns:
            those that cannot be: collections without a name, or of a stage that is not there.
        """
        from nosync_nb import Collection
        from nosync_nb.collections.session_protocol import session_of
        from nosync_nb.session.session import owners_of

        left, host, names = [], owners_of(before).host, self._shell.user_ns
        for name, value in list(names.items()):
            if name.startswith("_"):
                continue
            if value is before:
                names[name] = session
            elif isinstance(value, Collection) and session_of(value) is host:
                known = value.name
                if known is not None and known in session:
                    names[name] = session[known]
                else:
                    left.append(name)
        return left

    def set(self, name: str, value: Any, *, over: bool = False) -> bool:
        """Binds one name; refuses when a value of the user has it, unless `over`."""
        if not over and (taken(name) or not self._is_free(name)):
            return False
        self._shell.user_ns[name] = self._ours[name] = value
        return True

    def _is_free(self, name: str) -> bool:
        names = self._shell.user_ns
        return name not in names or self._is_ours(name, names[name])

    def drop(self, *only: str) -> None:
        """Deletes our variables of these names, or all; names that hold anything else stay."""
        names = self._shell.user_ns
        for name in only or [name for name in names if not name.startswith("_")]:
            if name in names and self._is_ours(name, names[name]):
                self._shell.drop_by_id({name: names[name]})
            self._ours.pop(name, None)
        if not only:
            self._host = None

    def _is_ours(self, name: str, value: Any) -> bool:
        """True if we bound it, or if it is our session's collection of that name."""
        return value is self._ours.get(name, self) or self.name_of(value) == name

    def name_of(self, value: Any) -> str | None:
        """The name of a collection in the notebook's session; None for anything else."""
        if self._host is None or "nosync_nb.collections.collection" not in sys.modules:
            return None
        from nosync_nb import Collection
        from nosync_nb.collections.session_protocol import session_of

        if not isinstance(value, Collection) or session_of(value) is not self._host:
            return None
        return value.name

    def bind_spark(self, spark: Any) -> None:
        """Binds the Spark session in use as `spark`, if that name is free or one of ours has it."""
        names = self._shell.user_ns
        ours = "spark" in self._ours and names.get("spark") is self._ours["spark"]
        if spark is not None and (ours or "spark" not in names):
            self.set("spark", spark, over=True)

    def lacks_spark(self, cell: CellSource) -> bool:
        """Whether a cell uses a `spark` that is not there."""
        used = "spark" in cell.names and "spark" not in cell.bound
        return used and "spark" not in self._shell.user_ns

    def remember(self, memo: NotebookMemo, source: str, number: int) -> bool:
        """Notes names that a cell bound; tells whether the memo changed."""
        changed = False
        for name in [name for name in self._seen if name not in self._shell.user_ns]:
            del self._seen[name]
            known = name in memo.names or name in memo.aliases or name in memo.imports
            memo.bound(name)
            changed |= known
        new = dict(self._new())
        if not new:
            return changed
        before = self._cells_before(number)
        cells = [(number, read_cell(source, self._shell.transform_cell))]
        for name, value in new.items():
            self._seen[name] = id(value)
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
            made = next(((n, c) for n, c in cells if name in c.bound), cells[0])
            self._note(memo, name, value, *made, [n for n in new if self.name_of(new[n]) is None])
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
        """Notes a plain variable: how it is imported, or the cell that made it."""
        if name in memo.imports and name not in cell.bound:
            return  # brought back
        memo.bound(name)
        if name in cell.imports:
            memo.imports[name] = cell.imports[name]
        elif isinstance(value, ModuleType):
            memo.imports[name] = f"import {value.__name__} as {name}"
        elif name not in cell.loops:
            made = cell.bound - cell.imports.keys() - cell.loops
            memo.names[name] = label(cell, number, [each for each in plain if each in made])

    def _cells_before(self, number: int) -> Iterator[tuple[int, CellSource]]:
        """The cells of this kernel before one, the latest first."""
        sources = self._shell.user_ns.get("In")
        if not isinstance(sources, list):
            return
        for earlier in range(min(number, len(sources)) - 1, max(0, number - _LOOKED_BACK), -1):
            yield earlier, read_cell(str(sources[earlier]), self._shell.transform_cell)

    def bring_back(self, memo: NotebookMemo, cell: CellSource, say: Callable[[str], None]) -> None:
        """Repeats the imports of names that a cell mentions and that are not there."""
        names = self._shell.user_ns
        for name, statement in [*memo.imports.items()]:
            if name in names or taken(name) or name in cell.bound or not cell.mentions(name):
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
        """Names that earlier kernels bound and this one lacks -> `In[3]: total = 5`.

        Args:
            cell: the running one; what it binds is not missed.
        """
        names = self._shell.user_ns
        return {
            name: made
            for name, made in memo.names.items()
            if name not in names and name not in cell.bound and not (name == "spark" and memo.conf)
        }

    def _new(self) -> Iterator[tuple[str, Any]]:
        hidden = self._shell.user_ns_hidden
        for name, value in list(self._shell.user_ns.items()):
            if name.startswith("_") or name in hidden or self._seen.get(name) == id(value):
                continue
            if name == "nosync" or (name == "spark" and value is self._ours.get(name)):
                continue
            yield name, value


def taken(name: str) -> bool:
    """Tells whether a name is Python's or IPython's, which no log may bind to something else."""
    ours = hasattr(builtins, name) or keyword.iskeyword(name) or name in _SHELL
    return ours or name.startswith("__")


def label(cell: CellSource, number: int, names: list[str] | tuple[str, ...] = ()) -> str:
    """A cell for people: `In[3]: total = 5`."""
    line = cell.line(names)
    return f"In[{number}]: {line}" if line else f"In[{number}]"
