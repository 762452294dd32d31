"""The notebook this process runs, and the functions that act on its session.

There is one notebook per kernel; outside a notebook these functions say what to use instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nosync.notebook import Notebook

_notebook: Notebook | None = None


def set_current(notebook: Notebook | None) -> None:
    """Makes a notebook the one that the functions below act on."""
    global _notebook
    _notebook = notebook


def current() -> Notebook | None:
    """The notebook whose extension is loaded, if any."""
    return _notebook


def session() -> Any:
    """The notebook's session; opens or recovers its log when called for the first time."""
    __tracebackhide__ = True
    if _notebook is None:
        from nosync_nb.errors import NosyncError

        raise NosyncError(
            "no notebook is attached",
            hint="run %load_ext nosync, or in a script: session = nosync.open(path)",
        )
    return _notebook.session()


def input(name: str, columns: Any, **options: Any) -> Any:
    """Declares an input of the notebook's session: `nosync.input("flights", "carrier string")`."""
    __tracebackhide__ = True
    return session().input(name, columns, **options)


def epoch(*, once: Any = None, label: str | None = None) -> Any:
    """Opens a transaction of its own: `with nosync.epoch(label="May"): flights.insert(rows)`."""
    __tracebackhide__ = True
    return session().epoch(once=once, label=label)


def commit(*, wait: str | None = None, label: str | None = None) -> int:
    """Closes the epoch now instead of at the end of the cell, and returns its number."""
    __tracebackhide__ = True
    number: int = session().commit(wait=wait, label=label)
    return number
