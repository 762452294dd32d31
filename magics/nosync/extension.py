"""Loads and unloads the extension, and provides the functions that act on the notebook's session.

Loading registers the magics and the shutdown hook, and binds `nosync`. It neither opens a log nor
loads the engine. It shows nothing, because a kernel that loads the extension at its start has no
cell for output. There is one notebook per kernel. Outside a notebook, the functions raise an error
that names the alternative.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from IPython.core.interactiveshell import InteractiveShell

    from nosync.magic import NoSync
    from nosync.notebook import Notebook
    from nosync_nb import Collection, Input, Session

_COLLECTION = ("nosync_nb.collections.collection", "Collection")
_REPORT = ("nosync_nb.session.state.report", "RecoveryReport")

_notebook: Notebook | None = None


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Attaches NoSync to an InteractiveShell.

    Examples:
        >>> %load_ext nosync
    """
    global _notebook
    from nosync.magic import NoSync, register_completion
    from nosync.progress import CellProgress
    from nosync_widgets.recovery_report import report_bundle

    magics = NoSync(shell)
    notebook = _notebook = magics.notebook
    undo = notebook.undoing.callback
    shell.register_magics(magics)
    undo(_forget_magics, shell, magics)
    names = {"nosync": sys.modules["nosync"]}
    shell.push(names, interactive=True)
    undo(shell.drop_by_id, names)
    assert shell.display_formatter is not None
    bundles = shell.display_formatter.mimebundle_formatter
    for kind, bundle in ((_COLLECTION, notebook.collection_bundle), (_REPORT, report_bundle)):
        bundles.for_type_by_name(*kind, bundle)
        undo(_forget_formatter, bundles, kind)
    undo(register_completion(notebook))
    following = CellProgress(notebook)
    for event, hears in (("pre_run_cell", following.before), ("post_run_cell", following.after)):
        shell.events.register(event, hears)
        undo(shell.events.unregister, event, hears)
    hook = ShutdownHook(notebook.exit, busy=lambda: bool(notebook.cells.source))
    hook.install()
    undo(hook.remove)
    notebook.attach()


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Detaches NoSync: session, views, hooks, magics, variables and formatters.

    Examples:
        >>> %unload_ext nosync
    """
    global _notebook
    if _notebook is not None and _notebook.shell is shell:
        notebook, _notebook = _notebook, None
        notebook.detach()


def _forget_magics(shell: InteractiveShell, magics: NoSync) -> None:
    manager = shell.magics_manager
    manager.registry.pop("NoSync", None)
    for kind, names in magics.magics.items():
        for name in names:
            manager.magics[kind].pop(name, None)
    configurables: list[Any] = shell.configurables
    if magics in configurables:
        configurables.remove(magics)


def _forget_formatter(formatter: Any, name: tuple[str, str]) -> None:
    """Removes the formatter of a type.

    IPython registers it by name until a value of the type is first shown, and then by type.
    """
    formatter.deferred_printers.pop(name, None)
    for kind in list(formatter.type_printers):
        if (kind.__module__, kind.__qualname__) == name:
            del formatter.type_printers[kind]


class ShutdownHook:
    """Closes the session when the kernel must end, even if a child process delays its end.

    Failure: 1. A notebook has used Spark, and its kernel is restarted from the menu. 2. ipykernel
    waits for the Java process to end before it stops itself. 3. The server stops waiting and sends
    SIGTERM: no exit handler runs, and the log looks as after a crash. Hence SIGTERM closes the
    session, too; but not in the middle of a cell, which may be committing.

    Args:
        close: closes the session.
        busy: returns True while a cell runs.
    """

    def __init__(self, close: Callable[[], None], busy: Callable[[], bool]) -> None:
        self._close = close
        self._busy = busy
        self._handles = False
        self._process = os.getpid()

    def install(self) -> None:
        """Installs the hook; an existing handler for SIGTERM stays in place."""
        atexit.register(self._close)
        free = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if free and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._handles = True

    def remove(self) -> None:
        """Removes the hook."""
        atexit.unregister(self._close)
        if self._handles and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handles = False

    def _on_sigterm(self, _signal: int, _frame: Any) -> None:
        """Closes the session, unless a cell runs; then ends the process as SIGTERM does."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            if os.getpid() == self._process and not self._busy():  # not in a forked process
                self._close()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)


def current() -> Notebook | None:
    """Returns the notebook whose extension is loaded, if any."""
    return _notebook


def session() -> Session:
    """The notebook's session; opens or recovers its log when called for the first time.

    Examples:
        >>> nosync.session().now
        0
    """
    __tracebackhide__ = True
    if _notebook is None:
        from nosync_nb.errors import NosyncError

        raise NosyncError(
            "no notebook is attached",
            hint="run %load_ext nosync, or in a script: session = nosync.open(path)",
        )
    return _notebook.session()


def input(name: str, columns: Any, **options: Any) -> Input:
    """Declares an input of the notebook's session: `nosync.input("flights", "carrier string")`.

    Examples:
        >>> planes = nosync.input("planes", "tail string, seats int", key="tail")
        >>> planes.key
        ('tail',)
    """
    __tracebackhide__ = True
    return session().input(name, columns, **options)


def epoch(*, once: Any = None, label: str | None = None) -> AbstractContextManager[Any]:
    """Opens a transaction of its own: `with nosync.epoch(label="May"): flights.insert(rows)`.

    Examples:
        >>> planes = nosync.input("planes", "tail string, seats int")
        >>> with nosync.epoch(label="May"):
        ...     planes.insert([("N1", 150)])
        >>> planes.count(at="May")
        1
    """
    __tracebackhide__ = True
    return session().epoch(once=once, label=label)


def sql(query: str, args: Mapping[str, Any] | Sequence[Any] | None = None) -> Collection:
    """A SELECT over the inputs and stages of the notebook's session, as a collection.

    Args:
        query: Spark SQL.
        args: the values of parameters: by name for `:name`, or in order for `?`.

    Examples:
        >>> planes = nosync.input("planes", "tail string, seats int")
        >>> planes.insert([("N1", 150)]), nosync.commit()
        (1, 1)
        >>> nosync.sql("SELECT tail FROM planes WHERE seats > 100").rows()
        [Row(tail='N1')]
    """
    __tracebackhide__ = True
    return session().sql(query, args)


def commit(*, wait: Literal["disk", "replicas"] | None = None, label: str | None = None) -> int:
    """Commits the epoch now instead of at the end of the cell, and returns its number.

    Examples:
        >>> planes = nosync.input("planes", "tail string, seats int")
        >>> planes.insert([("N1", 150)]), nosync.commit(label="May")
        (1, 1)
    """
    __tracebackhide__ = True
    return session().commit(wait=wait, label=label)
