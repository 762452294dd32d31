"""The variables of the notebook: those a session brings back, and those it cannot.

Inputs, stages and their other names come back after a restart, never over a value of the user.
Plain variables do not; their names and cells are remembered so that the report can say so. Of a
cell that binds what sounds like a secret, nothing but names is written to the disk.

What is remembered across kernels lies beside the log in `notebook.json`, with how often recovery
has ended the kernel. It is not part of the log: without it nothing is lost but words of the report.
"""

from __future__ import annotations

import builtins
import json
import keyword
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nosync.place import MEMO

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nosync_nb import Session

_MOST_NAMES = 200
_MOST_BYTES = 1 << 20
_SHELL = ("In", "Out", "get_ipython", "exit", "quit", "open", "nosync")

_SECRET = re.compile(
    r"pass|pwd|(?<![a-z])pw(?![a-z])|secret|token|credential|bearer|cookie|private|(?<![a-z])"
    r"(?:auth[a-z]*|api|access|sas|pin|dsn|(?:[a-z0-9]+_)?keys?)(?![a-z])|apikey|://[^/\s]*@",
    re.IGNORECASE,
)
"""What is found in the names of secrets, and in lines that hold some."""


@dataclass
class Memo:
    """What `notebook.json` says.

    attempts: recoveries begun and not finished; two mean safe mode.
    names: plain variables -> the cell that bound them.
    aliases: other names of stages and inputs -> their names.
    """

    attempts: int = 0
    names: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Memo:
        """Reads the file; a missing or damaged one, or what is no file, is an empty memo."""
        from nosync_nb.files.disk import Files

        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
            known = json.loads(Files().read(str(folder / MEMO), most=_MOST_BYTES))
            names, aliases = (
                {str(name): str(told) for name, told in dict(known[each]).items()}
                for each in ("names", "aliases")
            )
            return cls(int(known["attempts"]), names, aliases)
        return cls()

    def write(self, folder: Path) -> None:
        """Replaces the file; whole or not at all. A folder that refuses is left alone.

        IMPORTANT: only after the folder was admitted (`place.prepare`).
        """
        from nosync_nb.files.disk import Files

        self.names = dict(list(self.names.items())[-_MOST_NAMES:])
        with suppress(OSError):
            text = json.dumps(asdict(self)).encode()
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


class Variables:
    """Tells our variables in the user's namespace from the user's own."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._ours: dict[str, Any] = {}
        self._seen: dict[str, int] = {}

    def bind(self, session: Session, memo: Memo) -> list[str]:
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

    def lead(self, before: Session, session: Session) -> list[str]:
        """Hands names of a user that show what a session had to another one of the same log.

        Returns:
            those that cannot be: collections without a name, or of a stage that is not there.
        """
        from nosync_nb import Collection
        from nosync_nb.collections.host import host_of
        from nosync_nb.session.session import owners_of

        left, host, names = [], owners_of(before).host, self._shell.user_ns
        for name, value in list(names.items()):
            if name.startswith("_"):
                continue
            if value is before:
                names[name] = session
            elif isinstance(value, Collection) and host_of(value) is host:
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
    return value.name


def _binding_line(name: str, source: str) -> str:
    """The first line of a cell that mentions a name."""
    pattern = re.compile(rf"\b{re.escape(name)}\b")
    return next((line.strip() for line in source.splitlines() if pattern.search(line)), "")
