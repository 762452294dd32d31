"""The variables of the notebook: those a session brings back, and those it cannot.

Inputs, stages and their other names come back after a restart, never over a value of the user.
Plain variables do not; their names and cells are remembered so that the report can say so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from nosync.memo import Memo


class Bindings:
    """Tells our variables in the user's namespace from the user's own."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ours: dict[str, Any] = {}
        self._seen: dict[str, int] = {}

    def bind(self, session: Any, memo: Memo) -> list[str]:
        """Binds all collections of a session; returns the names that the user's values keep."""
        taken = []
        for name in [*session.inputs, *session.stages]:
            if not self.set(name, session[name]):
                taken.append(name)
        for alias, name in memo.aliases.items():
            if name in session.inputs or name in session.stages:
                self.set(alias, session[name])
        return taken

    def set(self, name: str, value: Any, *, over: bool = False) -> bool:
        """Binds one name; refuses when a value of the user has it, unless `over`."""
        names = self._shell.user_ns
        if not over and name in names and not self._is_ours(name, names[name]):
            return False
        names[name] = self._ours[name] = value
        return True

    def drop(self, *only: str) -> None:
        """Takes our variables away; names that hold values of the user stay."""
        names = self._shell.user_ns
        for name in only or [name for name in names if not name.startswith("_")]:
            if name in names and self._is_ours(name, names[name]):
                self._shell.drop_by_id({name: names[name]})
            self._ours.pop(name, None)

    def _is_ours(self, name: str, value: Any) -> bool:
        """A variable we bound, or a handle that has the name of its collection."""
        return value is self._ours.get(name, self) or registered_name(value) == name

    def bind_spark(self, spark: Any) -> None:
        """Binds the Spark session in use as `spark`, if that name is free."""
        if spark is not None and "spark" not in self._shell.user_ns:
            self.set("spark", spark)

    def remember(self, memo: Memo, source: str, number: int) -> bool:
        """Notes names that a cell bound; tells whether the memo changed."""
        changed = False
        for name in [name for name in self._seen if name not in self._shell.user_ns]:
            del self._seen[name]
            changed |= memo.names.pop(name, None) is not None
            changed |= memo.aliases.pop(name, None) is not None
        for name, value in self._new():
            self._seen[name] = id(value)
            registered = registered_name(value)
            if registered is None:
                memo.names.pop(name, None)
                memo.names[name] = f"In[{number}]: {_binding_line(name, source)}"
                memo.aliases.pop(name, None)
            else:
                memo.names.pop(name, None)
                if registered != name:
                    memo.aliases[name] = registered
            changed = True
        return changed

    def not_restored(self, memo: Memo) -> dict[str, str]:
        """Names that earlier kernels bound and this one lacks -> `In[3]: total = 5`."""
        names = self._shell.user_ns
        return {name: cell for name, cell in memo.names.items() if name not in names}

    def _new(self) -> Iterator[tuple[str, Any]]:
        hidden = self._shell.user_ns_hidden
        for name, value in list(self._shell.user_ns.items()):
            if name.startswith("_") or name in hidden or self._seen.get(name) == id(value):
                continue
            if name == "nosync" or (name == "spark" and value is self._ours.get(name)):
                continue
            yield name, value


def registered_name(value: Any) -> str | None:
    """The name under which a session knows a collection; None for anything else."""
    if "nosync_nb.collection" not in sys.modules:
        return None
    from nosync_nb import Collection

    if not isinstance(value, Collection):
        return None
    name: str | None = value.name
    return name


def _binding_line(name: str, source: str) -> str:
    """The first line of a cell that mentions a name, shortened."""
    pattern = re.compile(rf"\b{re.escape(name)}\b")
    line = next((line.strip() for line in source.splitlines() if pattern.search(line)), "")
    return line if len(line) <= 44 else line[:43] + "…"
