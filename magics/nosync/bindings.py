"""The variables of the notebook: those a session brings back, and those it cannot.

Inputs, stages and their other names come back after a restart, never over a value of the user.
Plain variables do not; their names and cells are remembered so that the report can say so. Of a
cell that binds what sounds like a secret, nothing but names is written to the disk.
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from collections.abc import Iterator
from typing import Any

from nosync.memo import Memo

_SHELL = ("In", "Out", "get_ipython", "exit", "quit", "open", "nosync")


_SECRET = re.compile(
    r"pass|pwd|(?<![a-z])pw(?![a-z])|secret|token|credential|bearer|cookie|private|(?<![a-z])"
    r"(?:auth[a-z]*|api|access|sas|pin|dsn|(?:[a-z0-9]+_)?keys?)(?![a-z])|apikey|://[^/\s]*@",
    re.IGNORECASE,
)
"""What is found in the names of secrets, and in lines that hold some."""


class Bindings:
    """Tells our variables in the user's namespace from the user's own."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ours: dict[str, Any] = {}
        self._seen: dict[str, int] = {}

    def bind(self, session: Any, memo: Memo) -> list[str]:
        """Binds all collections of a session; returns the names that others keep.

        A name of Python's own, such as `print`, is never bound by what a log says.
        """
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
        if not over and (taken(name) or not self._is_free(name)):
            return False
        self._shell.user_ns[name] = self._ours[name] = value
        return True

    def _is_free(self, name: str) -> bool:
        names = self._shell.user_ns
        return name not in names or self._is_ours(name, names[name])

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
        """Binds the Spark session in use as `spark`, if that name is free or one of ours has it."""
        names = self._shell.user_ns
        ours = "spark" in self._ours and names.get("spark") is self._ours["spark"]
        if spark is not None and (ours or "spark" not in names):
            self.set("spark", spark, over=True)

    def remember(self, memo: Memo, source: str, number: int) -> bool:
        """Notes names that a cell bound; tells whether the memo changed."""
        changed = False
        for name in [name for name in self._seen if name not in self._shell.user_ns]:
            del self._seen[name]
            changed |= memo.names.pop(name, None) is not None
            changed |= memo.aliases.pop(name, None) is not None
        new = list(self._new())
        secret = any(_SECRET.search(name) for name, _ in new)
        for name, value in new:
            self._seen[name] = id(value)
            registered = registered_name(value)
            if registered is None:
                memo.names.pop(name, None)
                memo.names[name] = f"In[{number}]"
                line = "" if secret else _binding_line(name, source)
                if line and not _SECRET.search(line):
                    memo.names[name] += f": {line if len(line) <= 44 else line[:43] + '…'}"
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


def taken(name: str) -> bool:
    """Tells whether a name is Python's or IPython's, which no log may bind to something else."""
    ours = hasattr(builtins, name) or keyword.iskeyword(name) or name in _SHELL
    return ours or name.startswith("__")


def registered_name(value: Any) -> str | None:
    """The name under which a session knows a collection; None for anything else."""
    if "nosync_nb.collections.collection" not in sys.modules:
        return None
    from nosync_nb import Collection

    if not isinstance(value, Collection):
        return None
    name: str | None = value.name
    return name


def _binding_line(name: str, source: str) -> str:
    """The first line of a cell that mentions a name."""
    pattern = re.compile(rf"\b{re.escape(name)}\b")
    return next((line.strip() for line in source.splitlines() if pattern.search(line)), "")
