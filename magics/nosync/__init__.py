"""NoSync in a notebook: `%load_ext nosync`, `%%dd` cells, and a session per notebook.

In scripts this package also exports the names of `nosync_nb`, as the same objects. Only `open`
differs: it also opens the log of a notebook (`lookup.open`). Importing this package is cheap: the
engine is loaded when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nosync.extension import (
    commit,
    epoch,
    input,
    load_ipython_extension,
    session,
    sql,
    unload_ipython_extension,
)

if TYPE_CHECKING:
    from nosync_nb import *  # noqa: F403

__all__ = [
    "commit",
    "epoch",
    "input",
    "load_ipython_extension",
    "session",
    "sql",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__version__":
        raise AttributeError(f"module 'nosync' has no attribute {name!r}")
    return getattr(import_module("nosync.log.lookup" if name == "open" else "nosync_nb"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("nosync_nb").__all__})
