"""Runs each cell as a transaction: its changes are committed inside it, or discarded with it.

Design
    1. `pre_run_cell` begins the session's transaction of the cell.
    2. The syntax tree of the cell is changed so that its last expression passes through `end`.
       This function commits after the expression is evaluated and before its value is displayed.
       So an error of the commit is an error of the cell; an error in `post_run_cell` would be lost.
    3. `post_run_cell` discards the pending changes of a failed cell, and commits those that no
       `end` committed. (The cell that loads the extension was parsed earlier, so it has no `end`:
       it commits when its value, if any, is displayed.)
    Code that a cell runs (`%run`, `%%time`, `%timeit`) belongs to the cell: only the first tree
    after the outermost `pre_run_cell` is changed.

Failure
    Rows that a thread, a timer or a widget inserts between two cells are pending outside any cell's
    transaction, and the transaction of the next cell would hide them. So the next cell commits them
    first. If that fails, the cell gets no transaction: its changes are added to those rows, so that
    the cell can discard them.
    The log records a stage when it is defined, before the rows of the cell are committed. If the
    commit fails, new stages are dropped again. An edited stage stays edited, and a message says so.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from nosync_widgets import formats

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell

    from nosync.settings import Settings
    from nosync_nb import Session
    from nosync_nb.frontend import PendingInputChanges, StageReport, Transaction

_END = "__nosync_end__"
_LOADING = object()
_CELLS_MAX = 256
_EPOCHS_MAX = 64
"""A cell that committed more epochs than this is not checked for repeated rows."""


class CellOwner(Protocol):
    """The notebook of the cells: it has the session, and is notified when a cell begins or ends.

    `opened` is the session; None before a log is opened.
    """

    shell: InteractiveShell
    settings: Settings
    opened: Session | None

    def before_cell(self) -> None:
        """Prepares the notebook for a cell, before the transaction of the cell begins."""

    def after_cell(self, result: ExecutionResult | None) -> None:
        """Updates the notebook after a cell, when its changes are committed or discarded."""

    def cancel_spark(self) -> None:
        """Cancels the Spark jobs of an interrupted cell."""

    def forget(self, *names: str) -> None:
        """Removes the views and variables of stages that were dropped."""

    def say(self, text: str, html: str | None = None, *, progress: bool = False) -> None:
        """Shows a text, or its HTML form, in the running cell; see `Notebook.say`."""

    def show_error(self, error: BaseException) -> None:
        """Shows an error that no cell raised."""


class CellTransactions(ast.NodeTransformer):
    """Manages the transactions of the cells of one shell.

    `transaction` is that of the running cell; None if it has none.
    """

    def __init__(self, owner: CellOwner) -> None:
        self._owner = owner
        self._shell = owner.shell
        # IMPORTANT: at load the running cell, if any, began before the hooks were registered: it
        # still ends through them.
        self._cell: object = _LOADING
        self._message: str | None = None
        self._awaits_tree = False
        self._reported = self._start = 0
        self._repeats = UnchangedNotice()
        self._new: list[str] = []
        self._edited: list[str] = []
        self._declared: list[str] = []
        self._unshown_notices: deque[str] = deque()  # notices that arrived while no cell ran
        self._parent = self._request
        self.transaction: Transaction | None = None

    def register(self) -> None:
        """Registers the hooks for cells in the shell."""
        self._shell.events.register("pre_run_cell", self.before)
        self._shell.events.register("post_run_cell", self.after)
        self._shell.ast_transformers.append(self)
        setattr(builtins, _END, self.end)

    def await_value(self) -> None:
        """Makes the running cell, which loads the extension, commit before its value is displayed.

        The display hook is replaced for this; IPython restores it when the cell ends.
        """
        shown = sys.displayhook

        def ended(value: Any) -> None:
            __tracebackhide__ = True
            shown(self.end(value))

        if self._shell.ast_node_interactivity != "all":  # in that mode each line has a value
            sys.displayhook = ended

    def unregister(self) -> None:
        """Commits all pending changes, and removes the hooks from the shell."""
        self._shell.events.unregister("pre_run_cell", self.before)
        self._shell.events.unregister("post_run_cell", self.after)
        if self in self._shell.ast_transformers:
            self._shell.ast_transformers.remove(self)
        self.commit_before_close()
        self._show_notices()
        # The running cell still calls `end`, because %unload_ext is code of a cell. So `end` is
        # removed only when the cell ends.
        setattr(builtins, _END, _pass_on)
        self._shell.events.register("post_run_cell", self._forget_end)

    def _forget_end(self, _result: ExecutionResult) -> None:
        self._shell.events.unregister("post_run_cell", self._forget_end)
        if getattr(builtins, _END, None) is _pass_on:
            delattr(builtins, _END)

    @property
    def source(self) -> str:
        """The text of the running cell; empty between cells."""
        text = getattr(self._cell, "raw_cell", None)
        if text is None and self._cell is _LOADING:
            sources = self._shell.user_ns.get("In") or [""]
            text = (self._request.get("content") or {}).get("code", sources[-1])
        return text if isinstance(text, str) else ""

    @property
    def _request(self) -> dict[str, Any]:
        """The front end's request; empty outside a kernel."""
        return getattr(self._shell, "get_parent", dict)() or {}

    @property
    def hidden(self) -> bool:
        """True if the front end runs the cell on its own initiative, and does not show it."""
        return _is_hidden(self._request)

    @property
    def number(self) -> int:
        """The execution count of the running cell."""
        count: int = self._shell.execution_count
        return count - 1 if getattr(self._cell, "store_history", False) else count

    def before(self, info: ExecutionInfo) -> None:
        """Handles `pre_run_cell` of a new cell; ignores code that the running cell runs."""
        message = _message_id(self._shell)
        running = self._cell not in (None, _LOADING)
        if running and (message is None or message == self._message):
            return
        self._cell, self._message, self._parent = info, message, self._request
        self._awaits_tree = True
        self._discard()
        self.defined(())
        self._owner.before_cell()
        self._show_notices()
        self.begin()

    def begin(self) -> None:
        """Begins the transaction of the running cell, if a session is open and autocommit is on."""
        session = self._owner.opened
        if session is None or self.transaction is not None or self._cell is None:
            return
        ready = not session.closed and self._owner.settings.autocommit
        if ready and self._commit_between(session):
            self.transaction = session.begin()
        self._reported = self._start = session.now

    def _commit_between(self, session: Session) -> bool:
        """Commits rows that were inserted outside of cells; returns True if none are left."""
        pending = commit_sizes(session.pending)
        if not pending:
            return True
        try:
            epoch = session.commit()
        except Exception as error:
            self._owner.show_error(error)
            self._owner.say(
                f"NoSync: uncommitted rows from outside a cell: {pending_rows(session)}; cells "
                "will not commit until `%dd commit` succeeds or you run `%dd discard`"
            )
            return False
        self._owner.say(commit_text(epoch, pending), progress=True)
        return True

    def hear(self, notice: str) -> None:
        """Shows a notice of the session in the running cell; without one, in the next cell.

        Notices of loads that were committed before are summarised at the end of the cell.
        """
        if self._cell is None or _is_hidden(self._parent):
            self._unshown_notices.append(notice)
        elif not self._repeats.hear(notice):
            with self._as_output():
                self._owner.say(f"NoSync: {notice}")

    @contextmanager
    def _as_output(self) -> Iterator[None]:
        """Sends the output of this thread to the running cell, even if another cell started it."""
        publisher: Any = self._shell.display_pub
        if not self._parent or not hasattr(publisher, "set_thread_parent"):
            yield
            return
        before = publisher.set_thread_parent(self._parent)
        try:
            yield
        finally:
            publisher.reset_thread_parent(before)

    def _show_notices(self) -> None:
        """Shows the notices that arrived while no cell ran."""
        while self._unshown_notices and not self.hidden:
            self._owner.say(f"NoSync: {self._unshown_notices.popleft()}")

    def defined(self, reports: Sequence[StageReport]) -> None:
        """Records the stages that the running cell has defined."""
        self._new = [each.name for each in reports if each.status == "new"]
        self._edited = [each.name for each in reports if each.status == "changed"]

    def heard(self, epoch: int) -> None:
        """Records that epochs up to this one were already reported."""
        self._reported = max(epoch, self._reported)

    def visit(self, tree: ast.AST) -> ast.AST:
        """Passes the last expression of the cell through `end`."""
        if not self._awaits_tree or not isinstance(tree, ast.Module):
            return tree
        self._awaits_tree = False
        last = tree.body[-1] if tree.body else None
        if last is None:
            return tree
        value = [last.value] if isinstance(last, ast.Expr) else []
        name = ast.Name(_END, ast.Load())
        ended = ast.Call(name, value, [])
        call = ast.Expr(ended)
        for node in (name, ended, call):
            ast.copy_location(node, last)
        if value:
            tree.body[-1] = call
        else:
            tree.body.append(call)
        return tree

    def end(self, value: Any = None) -> Any:
        """Commits the cell's changes and returns the value of its last expression."""
        __tracebackhide__ = True
        self._commit()
        return value

    def settle_first(self) -> None:
        """Commits the changes of the cell that loads the extension, which has no `end`."""
        if self._cell is _LOADING:
            self._commit()

    def commit_before_close(self) -> None:
        """Commits all pending changes before the session is closed, even from outside of cells."""
        __tracebackhide__ = True
        self._commit()
        session = self._owner.opened
        if session is not None and not session.closed and self._owner.settings.autocommit:
            self._commit_between(session)

    def after(self, result: ExecutionResult | None) -> None:
        """Handles `post_run_cell`: commits or discards remaining changes, notifies the notebook."""
        if self._cell is not _LOADING and not self._is_running(result):
            return
        failure = _failure(result)
        session = self._owner.opened
        try:
            if result is None or failure is not None:
                self._discard()
                if isinstance(failure, KeyboardInterrupt):
                    self._owner.cancel_spark()
            else:
                self._commit_late(result)
            if session is not None and session is self._owner.opened:
                self._report_blocks()
                if failure is None:
                    self._report_repeats(session)
                    self._report_without_rows(session)
            self._owner.after_cell(result)
        finally:
            self._cell = self._message = self.transaction = None

    def _is_running(self, result: ExecutionResult | None) -> bool:
        """Returns True for the result of the running cell, False for one of code inside it.

        The texts are compared as well, because an aborted cell has a new `info`.
        """
        if result is None or result.info is self._cell:
            return True
        texts = [getattr(each, "raw_cell", None) for each in (result.info, self._cell)]
        return bool(texts[0] == texts[1])

    def _commit(self) -> None:
        __tracebackhide__ = True
        transaction = self.transaction
        if transaction is None:
            return
        pending = commit_sizes(transaction.pending)
        if transaction:
            epoch = transaction.commit()
            self._report_blocks(epoch - 1)
            self._reported = epoch
            self._owner.say(commit_text(epoch, pending), progress=True)
        else:
            transaction.discard()
            self._report_blocks()
        self.transaction = None
        self.defined(())

    def _report_blocks(self, upto: int | None = None) -> None:
        """Reports the epochs that the cell committed explicitly, in blocks or with `commit`."""
        done = self._unreported_epochs(upto)
        line = f"{done} committed" if done else ""
        if skipped := self._repeats.skipped(line):
            self._owner.say(skipped)
        elif line:
            self._owner.say(line, progress=True)
        session = self._owner.opened
        if session is not None:
            self._reported = max(session.now if upto is None else upto, self._reported)

    def _report_repeats(self, session: Session) -> None:
        """Shows a message if the cell has inserted the same rows as in its previous run."""
        if session.mode == "r" or session.closed:
            return
        message = self._repeats.committed(session, self.source, self._start)
        if message:
            self._owner.say(message)

    def _report_without_rows(self, session: Session) -> None:
        """Reports inputs that the previous cell declared from data and that still have no rows."""
        declared, self._declared = self._declared, session.declared_from_data()
        for name in declared:
            collection = session.inputs.get(name)
            if collection is not None and name not in session.pending and not collection.count():
                self._owner.say(
                    f"NoSync: {name} has the columns of the data, but no rows yet:"
                    f" `{name}.insert(...)` adds rows"
                )

    def _unreported_epochs(self, upto: int | None = None) -> str:
        """Describes the epochs of the cell that were not reported yet; empty without any."""
        session = self._owner.opened
        if session is None or session.mode == "r":
            return ""
        last = session.now if upto is None else upto
        if last <= self._reported:
            return ""
        return (
            f"epoch {last}"
            if last == self._reported + 1
            else f"epochs {self._reported + 1} to {last}"
        )

    def _commit_late(self, result: ExecutionResult) -> None:
        try:
            self._commit()
        except Exception as error:
            self._owner.show_error(error)
            result.error_in_exec = error
            self._discard()

    def _discard(self) -> None:
        transaction, self.transaction = self.transaction, None
        if transaction is None:
            return
        lost = pending_rows(transaction)
        transaction.discard()
        if lost:
            done = self._unreported_epochs()
            outcome = f"{done} committed before that" if done else "nothing was committed"
            self._owner.say(f"NoSync: the cell failed; {lost} discarded, {outcome}")
        self._drop_new_stages()

    def _drop_new_stages(self) -> None:
        """Drops the new stages of a failed cell, unless it has committed an epoch."""
        new, edited = self._new, self._edited
        self.defined(())
        session = self._owner.opened
        if session is None or session.closed or self._unreported_epochs():
            return
        gone = [name for name in new if name in session.stages]
        if gone:
            session.drop(*gone)
            self._owner.forget(*gone)
            self._owner.say(
                f"NoSync: the cell failed, so it did not define {formats.listing(gone)}"
            )
        if edited:
            self._owner.say(
                f"NoSync: the cell failed, but the edit of {formats.listing(edited)} is committed:"
                " run the previous version of the cell to undo it"
            )


def _failure(result: ExecutionResult | None) -> BaseException | None:
    """Returns the error that ended the cell; None if it ran to its end."""
    if result is None:
        return KeyboardInterrupt()
    failure: BaseException | None = result.error_before_exec or result.error_in_exec
    return failure


def _is_hidden(request: Mapping[str, Any]) -> bool:
    """Returns True if a front end runs code on its own initiative, and does not show it."""
    return (request.get("content") or {}).get("store_history") is False


def _message_id(shell: InteractiveShell) -> str | None:
    """Returns the id of the current request of the front end; None outside a kernel."""
    parent: dict[str, Any] | None = getattr(shell, "get_parent", dict)()
    identity: str | None = (parent or {}).get("header", {}).get("msg_id")
    return identity


def _pass_on(value: Any = None) -> Any:
    return value


def pending_rows(holder: Session | Transaction) -> str:
    """Describes the pending rows of a session or transaction: `3 pending rows (flights)`."""
    pending = commit_sizes(holder.pending)
    if not pending:
        return ""
    rows = sum(rows for rows, *_ in pending.values())
    return f"{formats.count(rows, 'pending row')} ({formats.listing(pending)})"


def commit_sizes(pending: Mapping[str, PendingInputChanges]) -> dict[str, tuple[int, int, int]]:
    """Returns the numbers of pending rows, of calls, and of removed rows, by input."""
    return {name: (item.rows, item.calls, item.removed) for name, item in pending.items()}


def _change_text(rows: int, removed: int) -> str:
    """Describes the change of an input: `3 rows`, `+3 / −1 rows`, `−1 row`."""
    if not removed:
        return formats.count(rows, "row")
    came = rows - removed
    gone = f"−{removed:,} row{'' if removed == 1 and came < 2 else 's'}"
    return f"+{came:,} / {gone}" if came else gone


def commit_text(epoch: int, pending: dict[str, tuple[int, int, int]]) -> str:
    """Returns the message of a commit, with advice if several calls became one epoch."""
    parts = [
        f"{name} {_change_text(rows, removed)}" for name, (rows, _, removed) in pending.items()
    ]
    line = f"epoch {epoch}: {', '.join(parts) or 'nothing new'}"
    calls = max((calls for _, calls, _ in pending.values()), default=0)
    is_replaced = any(rows == 2 * removed > 0 for rows, _, removed in pending.values())
    if calls > 1 + is_replaced:  # UPDATE is one change by two calls
        what = "change" if any(removed for *_, removed in pending.values()) else "insert"
        line += (
            f"\n{formats.count(calls, what)} became one epoch; for one epoch each, wrap them in"
            " `with nosync.epoch():`"
        )
    return line


class UnchangedNotice:
    """Detects cells of one notebook that are run again with the same rows.

    Loads whose keys are already recorded are skipped. They are only counted, because one line for
    each would hide more important messages. Inserts without a key are applied again. A message
    points that out if the same cell has inserted the same rows before.

    Threads: any may call while a cell runs.
    """

    def __init__(self) -> None:
        self._skipped: list[str] = []
        self._commits: dict[bytes, tuple[str, range]] = {}

    def hear(self, notice: str) -> bool:
        """Stores the notice of a skipped load until the cell ends; returns False for any other."""
        from nosync_nb.frontend import is_skipped_load

        if is_skipped_load(notice):
            self._skipped.append(notice)
            return True
        return False

    def skipped(self, done: str = "") -> str:
        """Returns a message about the skipped loads, and clears them.

        Args:
            done: the description of the epochs that the cell committed, for the message.
        """
        notices, self._skipped = self._skipped, []
        if not notices:
            return ""
        if len(notices) == 1:
            return f"NoSync: {notices[0]}" + (f"\n{done}" if done else "")
        count = f"{formats.count(len(notices), 'load')} were already committed"
        return f"NoSync: {count}; {done}" if done else f"NoSync: {count}, nothing to do"

    def committed(self, session: Session, source: str, start: int) -> str:
        """Records the commits of a cell after epoch `start`; returns a message about repeated rows.

        Cost: a hash of the source. If the cell was run before, reads the rows of its epochs.
        """
        epochs = range(start + 1, session.now + 1)
        if not 0 < len(epochs) <= _EPOCHS_MAX or not source.strip():
            return ""
        text = hashlib.blake2b(source.strip().encode(errors="replace"), digest_size=16).digest()
        path, before = self._commits.pop(text, ("", range(0)))
        self._commits[text] = session.path, epochs
        while len(self._commits) > _CELLS_MAX:
            del self._commits[next(iter(self._commits))]
        if path != session.path or len(before) != len(epochs) or before.stop > epochs.start:
            return ""
        info = session.info
        same = {frozenset(info.repeated_inputs(*pair)) for pair in zip(before, epochs, strict=True)}
        names = sorted(frozenset.intersection(*same))
        if not names:
            return ""
        which = f"epoch {before[0]}" if len(before) == 1 else f"epochs {before[0]} to {before[-1]}"
        return (
            f"NoSync: the same rows as in {which}: {formats.listing(names)} has them twice now;"
            f" `%dd rewind {start}` removes them, insert(rows, once=KEY) inserts a load only once"
        )
