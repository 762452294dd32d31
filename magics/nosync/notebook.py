"""Manages a notebook: its session, the variables that the session restores, and its messages.

Failure
    The kernel may die at any moment and be restarted automatically. Loading is silent and opens
    nothing; the first cell of the new kernel recovers, binds the variables and shows the report. A
    recovery that has ended the kernel twice is not tried a third time automatically (safe mode): a
    front end gives up after five deaths, and the notebook would be unusable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nosync.cells.source import read_cell
from nosync.cells.tracebacks import ShortErrors
from nosync.cells.transaction import CellTransactions, pending_rows
from nosync.log.binding import Binding, log_owner_notebook
from nosync.log.location import (
    LogPlace,
    abandoned_place,
    current_log_folder,
    is_log_lost,
    main_of,
    prepare_folder,
    restored_place,
    shown_path,
    temporary_place,
)
from nosync.log.notebook_memo import NotebookMemo
from nosync.open_views import OpenViews
from nosync.spark_variable import NotebookSpark
from nosync.variables import Variables, is_reserved
from nosync_widgets import formats
from nosync_widgets.recovery_report import report_html

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from nosync.cells.source import CellSource
    from nosync.settings import Settings
    from nosync_nb import Collection, Session

_SAFE_MODE = 2


class Notebook:
    """The notebook of one shell.

    Attributes:
        opened: the session; None before a log is opened.
        place: the log that this notebook writes. It may be a branch of another notebook's log. Then
            `main` is that log, which this notebook only reads.
        branch: the branch of `main` that cells use; None for `main` itself.
        undoing: further callbacks for the unloading of the extension.
    """

    def __init__(self, shell: InteractiveShell, settings: Settings) -> None:
        self.shell = shell
        self.settings = settings
        self.opened: Session | None = None
        self.place: LogPlace | None = None
        self.branch: str | None = None
        self.errors = ShortErrors(shell, settings, self._named)
        self.cells = CellTransactions(self)
        self.variables = Variables(shell)
        self.binding = Binding(shell)
        self.views = OpenViews()
        self.undoing = ExitStack()
        self.spark = NotebookSpark(self.variables, shell.user_ns)
        self._has_looked = False
        self._report_due = False  # True if a report is still to be shown

    @property
    def main(self) -> Path | None:
        """The folder of the main log; None before a log is open."""
        return None if self.place is None else main_of(self.place.path)[0]

    @property
    def home(self) -> str | None:
        """The branch of the main log that is this notebook's own log; None if that is main."""
        return None if self.place is None else main_of(self.place.path)[1]

    def attach(self) -> None:
        """Starts to handle the cells of the shell; recovers immediately if a cell is running."""
        self.cells.register()
        if self.shell.display_trap.is_active:
            self.cells.await_value()
            self.before_cell()

    def detach(self) -> None:
        """Closes the session, and removes all hooks from the shell."""
        self.cells.unregister()
        self.close()
        self.errors.remove()
        self.undoing.close()

    def session(self) -> Session:
        """Returns the session; the first call opens or recovers the log."""
        __tracebackhide__ = True
        self.reopen()
        return self.opened if self.opened is not None else self.open()

    def reopen(self) -> None:
        """Opens the log and binds the variables again, if the user closed the session."""
        __tracebackhide__ = True
        if self.opened is not None and self.opened.closed:
            self.cells.commit_before_close()
            mode, reads = self.opened.mode, self.home is not None and self.branch is None
            self.open(mode=mode, main=mode == "r" and reads)

    def open(
        self,
        path: str | None = None,
        *,
        force: bool = False,
        brief: bool = False,
        main: bool = False,
        **options: Any,
    ) -> Session:
        """Opens a log as the notebook's session and restores its variables.

        Args:
            path: a folder; None means the log in use, or the notebook's own. Its views stay open.
            force: opens the log even in safe mode.
            brief: shows no recovery report, because the caller reports the recovery.
            main: opens the main log, only for reading; the notebook's own log is a branch of it.
            options: further arguments of `nosync.open`.
        """
        __tracebackhide__ = True
        named = None if path is None else Path(path).expanduser().resolve()
        place = self._place() if named is None else LogPlace(named, "%dd open")
        if main:
            options["mode"] = "r"
        write = options.get("mode", "w") == "w"
        memo = NotebookMemo.read(place.path)
        if memo.attempts >= _SAFE_MODE and not force:
            raise abandoned_place(place)
        self.errors.install()
        if named is None and self.place is None and write:
            place = self.binding.rename(place)
        log, home = main_of(place.path)
        where = log if main else current_log_folder(place) if write else place.path
        self._refuse_pending(where, options)
        offered = restored_place(place, options) if write and not place.has_log else ""
        existed = prepare_folder(place, write=write) and write
        with memo.attempt(place.path, write=existed), log_owner_notebook(place):
            session = self._open_folder(place, where, options)
        if write and not existed:
            memo.write(place.path)
        if session is self.opened:
            return session
        before = self.opened if named is None or log == self.main else None
        news = self.binding.news()
        branch = main_of(where)[1]
        with self._leave(views=before is None and named is not None):
            self._adopt(session, place, memo if write else None)
            self.branch = branch
            if before is not None:
                self.views.move(session, branch)
        self._announce(session, place, brief)
        self._record_cell(session)
        if before is not None and (old := self.variables.lead(before, session)):
            names = formats.listing(old)
            self.say(f"NoSync: still from the previous session: {names}; run their cells again")
        if branch is not None and not brief:
            back = "returns to" if home is None else "reads"
            self.say(f"NoSync: now on branch {branch}; `%dd switch` {back} the main log")
        for line in filter(None, (offered, news)):
            self.say(f"NoSync: {line}")
        return session

    def _open_folder(self, place: LogPlace, where: Path, options: Mapping[str, Any]) -> Session:
        """Opens the log in the folder `where`: that of `place`, its main log, or a branch."""
        __tracebackhide__ = True
        import nosync_nb

        try:
            return nosync_nb.open(str(where), spark=self.spark.users, **options)
        except nosync_nb.NosyncError as error:
            if "replicas" in options and not place.has_log:
                error.add_note("Hint: `%dd reset` forgets these replicas, and a new log can begin")
            raise

    def _adopt(self, session: Session, place: LogPlace, memo: NotebookMemo | None) -> None:
        """Adopts a session as the notebook's.

        Args:
            memo: the memo of the log; None if the log is only read.
        """
        is_own = memo is None or self.binding.adopt(place)
        folder = None if memo is None else place.path
        self.variables.switch_memo(memo or NotebookMemo.read(place.path), folder, own=is_own)
        self.opened, self.place, self._has_looked = session, place, True
        session.on_notice(self.cells.hear)
        self.configure()
        self.cells.begin()

    def reset(self) -> Path:
        """Closes the session and forgets the replicas of its log; returns the log's folder."""
        from nosync_nb.log_folders import LogFolder

        place = self._place()
        self.close()
        LogFolder(place.path).forget_replicas()
        return place.path

    def switch(self, name: str | None) -> Session:
        """Switches cells to a branch of the main log, now and after a restart.

        If the notebook's own log is a branch, another notebook writes the main log. Then this
        notebook only reads the main log, and only until the next restart.

        Args:
            name: the full name of the branch; None means the main log itself.

        Raises:
            SchemaError: there is no such branch.
            FencedError: another kernel has the branch open; cells stay on the current one.
        """
        __tracebackhide__ = True
        place = self._place()
        main, home = main_of(place.path)
        if name is None and home is not None:
            return self.open(force=True, brief=True, main=True)
        from nosync_nb.log_folders import LogFolder

        log = LogFolder(place.path)
        if name is not None:
            LogFolder(main).restore_branch(name)  # if it is only at its replicas
        if home is not None and name != home and not str(name).startswith(f"{home}/"):
            branch = LogFolder(main).existing_branch(str(name)).path
            return self.open(str(branch), force=True, brief=True)
        before = log.notebook_branch
        log.set_notebook_branch(_relative_branch(home, name))
        try:
            return self.open(force=True, brief=True)
        except BaseException:
            log.set_notebook_branch(before)
            raise

    @contextmanager
    def log(self, branch: str | None = None, *, mode: Literal["r", "w"] = "w") -> Iterator[Session]:
        """Provides the session of a branch for the block, opened if it is not in use.

        Args:
            branch: the full name of the branch; None means the main log.
        """
        session = self.session()
        if self.main is None or (self.branch == branch and mode in ("r", session.mode)):
            yield session
            return
        import nosync_nb
        from nosync_nb.log_folders import LogFolder

        folder = self.main if branch is None else LogFolder(self.main).branch(branch).path
        try:
            opened = nosync_nb.open(str(folder), mode=mode)
        except nosync_nb.FencedError as error:
            hint = "run this command in the notebook that has it open, or close it there"
            raise nosync_nb.FencedError(str(error), hint=hint) from error
        with opened as other:
            yield other

    def check_main(self, main: Session) -> None:
        """Raises SchemaError if the branch in use was not forked from the given main log.

        The folder of a branch may have been moved away from the log that it was forked from.
        """
        from nosync_nb.errors import SchemaError

        session = self.session()
        parent = session.info.forked_from
        nested = self.branch is not None and "/" in self.branch
        if parent is not None and not nested and parent != main.info.log_id:
            raise SchemaError(
                f"'{session.path}' was forked from a log that is not in the folder above it",
                hint="name that log: main = nosync.open(FOLDER, mode='r'), then"
                " nosync.session().follow(main), or nosync.session().compare(main['x'], x)",
            )

    def _refuse_pending(self, where: Path, options: Mapping[str, Any]) -> None:
        """Raises NosyncError if another log is to be opened while rows are pending."""
        session = self.opened
        if session is None or session.closed or self.cells.transaction is not None:
            return
        same = session.mode == options.get("mode", "w") and not options.get("takeover")
        lost = pending_rows(session)
        if lost and not (same and where.resolve() == Path(session.path)):
            from nosync_nb.errors import NosyncError

            raise NosyncError(
                f"the open log has {lost}", hint="run %dd commit or %dd discard first"
            )

    def close(self, *, views: bool = True) -> None:
        """Closes the session and, if `views`, all views; removes the session's variables."""
        with self._leave(views=views):
            pass

    @contextmanager
    def _leave(self, *, views: bool) -> Iterator[None]:
        """Releases the session, and closes it after the block.

        Before the end of the block, all views must be closed or moved to another session.
        """
        self.cells.commit_before_close()
        lost = "" if self.opened is None else pending_rows(self.opened)
        if lost:
            self.say(f"NoSync: discarded, because nothing committed them: {lost}")
        if views:
            self.views.close()
        self.variables.drop()
        self.binding.release()
        self.variables.release_memo()
        session, self.opened = self.opened, None
        try:
            yield
        finally:
            if session is not None:
                session.close()

    def before_cell(self) -> None:
        """Opens an existing log in the first cell of a new kernel, or shows a pending report."""
        try:
            if self.opened is None and not self._has_looked:
                self._open_existing()
            elif self._report_due and not self.cells.hidden:
                self.show_report()
        except Exception as error:
            self._has_looked = True
            self.show_error(error)
        self._record_cell(self.opened)

    def _open_existing(self) -> None:
        """Opens the notebook's log if there is one."""
        place = self.binding.find_log()
        if place is None:  # VS Code sets the name in a hidden cell
            return
        self._has_looked = True
        if place.has_log:
            self.open()
        elif news := self.binding.news() or is_log_lost(place):
            self.say(f"NoSync: {news}")

    def _cell(self) -> CellSource:
        """Analyses the source of the running cell."""
        return read_cell(self.cells.source, self.shell.transform_cell)

    def _record_cell(self, session: Session | None) -> None:
        """Records the running cell; restores modules and the Spark session that it mentions."""
        if self.cells.hidden:
            return
        cell = self._cell()
        if session is not None:
            self.variables.record_cell(session, cell, self.cells.number)
            self.variables.bring_back(cell, self.say)
        self.spark.before_cell(session, cell, self.say)

    def after_cell(self, result: ExecutionResult | None) -> None:
        """Records the names that the cell bound, and refreshes open views."""
        source = getattr(getattr(result, "info", None), "raw_cell", None) or ""
        self.spark.after_cell(self.opened, source)
        if self.opened is not None:
            self.views.refresh()
            self.binding.ran()
        self.variables.record_end(source, self.cells.number)

    def cancel_spark(self) -> None:
        """Cancels the Spark jobs of an interrupted cell: Ctrl-C alone leaves them running."""
        if self.opened is not None:
            self.opened.spark_control.cancel()

    def forget(self, *names: str) -> None:
        """Closes the views of dropped stages, and removes their variables."""
        for name in names:
            self.views.close(name)
            self.variables.drop(name)

    def show_error(self, error: BaseException) -> None:
        """Displays an error that no cell raised, such as one of recovery."""
        self.errors.install()
        self.errors.display_error(error)

    def say(self, text: str, html: str | None = None, *, progress: bool = False) -> None:
        """Shows a text in the running cell.

        Args:
            html: the form for front ends that show HTML; by default the escaped text.
            progress: True for a message that the setting `progress` can turn off.
        """
        if progress and self.settings.progress == "off":
            return
        from IPython.display import display

        style = f"margin:0;word-break:normal;{formats.LINE}"  # JupyterLab breaks lines within words
        shown = html or f'<pre style="{style}">{formats.html(text)}</pre>'
        display({"text/plain": formats.visible(text), "text/html": shown}, raw=True)

    def show_report(self) -> None:
        """Shows the recovery report, with the variables that are not restored.

        In a hidden cell, the report is deferred to the next cell.
        """
        self._report_due = self.cells.hidden
        if self._report_due:
            return
        session = self.session()
        self.variables.add_facts(session, self._cell())
        self.say(str(session.recovery), report_html(session.recovery))

    def _announce(self, session: Session, place: LogPlace, brief: bool) -> None:
        unbound = self.variables.bind(session)
        if session.recovery.fresh:
            if place.temporary:
                self.say(
                    f"NoSync: the notebook's name is unknown, so its log is temporary "
                    f"({place.path}); use `%dd open PATH`, or set NOSYNC_SESSION=PATH, for a "
                    "permanent one"
                )
            else:
                self.say(f"NoSync: new log {shown_path(place.path)}", progress=True)
            return
        if not brief:
            self.show_report()
        for name in unbound:
            whose = "a name of Python" if is_reserved(name) else "your variable"
            self.say(f'NoSync: {name} is {whose}; the stage is session["{name}"]')

    def configure(self) -> None:
        """Passes the settings that concern the engine to the session."""
        session, settings = self.opened, self.settings
        self.spark.configure(settings, session)
        if session is None:
            return
        from nosync_nb import NosyncError

        session.replay_rows = settings.replay_rows
        session.backlog_bytes = settings.backlog_bytes
        try:
            set_budget(settings.budget, session)
        except NosyncError as error:  # the log needs more: it keeps its own budget
            self.say(f"NoSync: {error}; {error.hint}")

    def _named(self) -> list[str]:
        """The names of the log's inputs and stages."""
        return [] if self.opened is None else [*self.opened.inputs, *self.opened.stages]

    def collection_bundle(self, collection: Collection) -> dict[str, str]:
        """Returns the output of a cell whose value is a collection.

        An error is shown here, and nothing is returned, because IPython would show every frame.
        """
        from nosync_widgets.tables import collection_table

        try:
            self.cells.settle_first()
            session, limit, name = self.opened, self.settings.limit, collection.name
            if session is not None and not session.owns(collection):
                session = None
            table = collection_table(collection, limit=limit, session=session)
        except Exception as error:
            self.show_error(error)
            return {}
        bundle = {"text/plain": table.text(), "text/html": table.html()}
        if session is None or name is None or not hasattr(self.shell, "kernel"):
            return bundle
        # A notebook that is opened again without its kernel shows no widgets, and nothing in their
        # place. So the current rows are shown above the grid, folded up.
        grid = self.views.grid(session, name, limit, self.branch)
        text, rows = grid.static()
        self.say(text, formats.folded(grid.title(), rows))
        return {**grid.bundle(), **bundle}

    def _place(self) -> LogPlace:
        """Returns the log in use, even if its session is closed, or else the notebook's own."""
        if self.place is not None:
            return self.place
        return self.binding.find_log() or temporary_place()

    def exit(self) -> None:
        """Closes the session at the end of the process, and removes a temporary log."""
        temporary = self.place is not None and self.place.temporary
        with suppress(Exception):
            self.close()
        with suppress(Exception):  # closing may show messages, and the front end may be gone
            if self.opened is not None:
                self.opened.close()
        if temporary and self.place is not None:
            from nosync_nb.log_folders import Files

            Files().remove_folder(str(self.place.path))


def set_budget(budget: str, session: Session | None) -> None:
    """Sets the disk budget of a session's log; does nothing if the budget is empty.

    Without a session, or for a reader, the budget is only checked.

    Raises:
        SchemaError: the text is not a budget, or the log needs more. Nothing is changed.
    """
    if not budget:
        return
    from nosync_nb.frontend import parse_budget

    size = parse_budget(budget)
    if session is not None and session.mode == "w" and session.budget != size:
        session.budget = budget


def _relative_branch(home: str | None, name: str | None) -> str | None:
    """Returns the name of a branch within the branch `home`; None for `home` itself.

    Args:
        home: the full name of a branch; None for the main log.
        name: the full name of the same branch, or of a branch below it.
    """
    if home is None or name is None:
        return name
    return name.removeprefix(home).removeprefix("/") or None
