"""The magics `%dd` and `%%dd`, their completion, and the checks of `%config NoSync`."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable
from tokenize import TokenError
from types import FrameType
from typing import TYPE_CHECKING, Any

import traitlets
from IPython.core.displayhook import DisplayHook
from IPython.core.error import UsageError
from IPython.core.magic import (
    line_cell_magic,
    magics_class,
    no_var_expand,
)
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from nosync.define import define_cell
from nosync.notebook import Notebook, set_budget
from nosync.settings import Settings
from nosync.sql_cells import run_sql_cell
from nosync.sql_completion import complete_sql, sql_before_cursor

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_LINE = re.compile(r"^\s*(%%?)dd\s+(.*)$")
_CELL_OPTIONS = ("--on", "--persist", "--replay", "--nondeterministic", "--again")


@magics_class
class NoSync(Settings):
    """Settings of NoSync."""  # the class name is the section of `%config`

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.notebook = Notebook(shell, self)
        self.observe(
            self._reconfigured,
            names=["replay_rows", "backlog_bytes", "budget", "spark_conf", "spark", "bulk"],
        )

    @traitlets.validate("budget")
    def _bounded(self, proposal: Any) -> str:
        """Checks that a budget is valid for the open log before it is set."""
        from nosync_nb import NosyncError

        budget, notebook = str(proposal["value"]), getattr(self, "notebook", None)
        try:
            set_budget(budget, None if notebook is None else notebook.opened)
        except NosyncError as error:
            raise traitlets.TraitError(f"{error}; {error.hint}") from None
        return budget

    @traitlets.validate("bulk")
    def _placed(self, proposal: Any) -> str:
        """Checks that a URL is valid before it is set."""
        from nosync_nb import NosyncError
        from nosync_nb.frontend import check_staging_url

        try:
            return check_staging_url(proposal["value"]) if proposal["value"] else ""
        except NosyncError as error:
            raise traitlets.TraitError(f"{error}; {error.hint}") from None

    def _reconfigured(self, _change: Any) -> None:
        self.notebook.configure()

    @no_var_expand
    @magic_arguments()
    @argument(
        "--on",
        choices=["auto", "local", "spark"],
        default="auto",
        help="where the stages run; auto: by estimated cost, see explain()",
    )
    @argument(
        "--persist",
        choices=["memory", "disk", "replicas"],
        default=None,
        help="durability level of these stages; memory: nothing is written, and they are recomputed"
        " after a restart; default: unchanged, for new stages the safest that is possible",
    )
    @argument(
        "--replay",
        type=int,
        metavar="EPOCH",
        default=None,
        help="compute the edited stage from this epoch on",
    )
    @argument(
        "--nondeterministic",
        action="store_true",
        help="functions may return another result next time: memoise their results",
    )
    @argument(
        "--again", action="store_true", help="recompute from scratch although nothing was edited"
    )
    @line_cell_magic
    def dd(self, line: str, cell: str | None = None) -> Any:
        """Define stages in a cell; `%dd help` lists what the line form does.

        Each top-level name that the cell binds to a collection becomes a stage with its last
        value. Names that begin with an underscore, containers and locals of functions do not.

        A cell that begins with `%%dd sql` has SQL statements, separated by semicolons. They are one
        transaction: CREATE [OR REPLACE] [TEMPORARY] VIEW, DROP VIEW, INSERT INTO, DELETE FROM,
        UPDATE, MERGE INTO, and at the end SELECT, SHOW TABLES, DESCRIBE or EXPLAIN, whose result is
        shown and not stored.

        Examples::

            %%dd
            delays = flights.group_by("carrier").agg(avg_delay="avg(dep_delay)")
            worst = delays.filter("avg_delay > 15")

            %%dd sql
            CREATE VIEW late AS SELECT * FROM flights WHERE dep_delay > 60;
            SELECT carrier, count(*) FROM late GROUP BY carrier ORDER BY carrier

            %%dd sql late
            SELECT * FROM flights WHERE dep_delay > 60

            %dd sql SELECT count(*) FROM flights
            %dd status
            %dd travel worst
        """
        __tracebackhide__ = True
        if cell is None:
            from nosync.commands.dispatch import run

            value = _display_if_dropped(self.notebook.shell, run(self.notebook, line))
            return None if not _is_sql(line) and _is_silenced(line) else value
        words, is_sql = line.split(), _is_sql(line)
        named = [word for word in words[1:2] if not word.startswith("-")] if is_sql else []
        written = " ".join(words[1 + len(named) :]) if is_sql else line
        try:
            arguments = vars(parse_argstring(self.dd, written))
        except UsageError as error:
            raise UsageError(f"%%dd: {error}; `%%dd?` lists the options") from None
        if not cell.strip():
            raise UsageError("%%dd: the cell is empty; write definitions below the first line")
        options = {name: value for name, value in arguments.items() if value is not None}
        if is_sql:
            return run_sql_cell(self.notebook, cell, named[0] if named else None, options)
        value = define_cell(self.notebook, line, cell, options)
        return None if _is_silenced(cell) else value


def _is_sql(line: str) -> bool:
    """Returns True if the words of a magic begin with `sql`."""
    return [word.lower() for word in line.split(maxsplit=1)[:1]] == ["sql"]


def _is_silenced(source: str) -> bool:
    """Returns True if Python code ends in a semicolon, so that its value is not displayed.

    IPython's decorator for this is not used: it reads SQL as Python, and raises an error for it.
    """
    try:
        return bool(DisplayHook.semicolon_at_end_of_expression(source))
    except (TokenError, SyntaxError):
        return False


def _display_if_dropped(shell: InteractiveShell, value: object) -> object:
    """Returns a value if the code of the cell uses it; else displays it, and returns None.

    IPython shows only the value of a cell's last expression, so the output of `%dd diff late` above
    another line would be lost. The bytecode after the call shows if the value is used: Python drops
    an unused value in the next instruction.
    """
    if value is None or not _is_dropped(_caller(shell)):
        return value
    display(value)
    return None


def _caller(shell: InteractiveShell) -> FrameType | None:
    """Returns the innermost frame that runs code of a cell; None without one."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if shell.compile.format_code_name(frame.f_code.co_filename) is not None:
            return frame
        frame = frame.f_back
    return None


def _is_dropped(frame: FrameType | None) -> bool:
    """Returns True if a frame will drop the value of the call that it waits for."""
    if frame is None:
        return False
    after = (step for step in dis.get_instructions(frame.f_code) if step.offset > frame.f_lasti)
    return next((step.opname == "POP_TOP" for step in after if step.opname != "CACHE"), False)


def register_completion(notebook: Notebook) -> Callable[[], None]:
    """Adds a matcher to the shell's completer; returns a function that removes it."""
    matchers, matcher = notebook.shell.Completer.custom_matchers, _matcher(notebook)
    matchers.insert(0, matcher)
    return lambda: matchers.remove(matcher)


def candidates(notebook: Notebook, line: str) -> list[str]:
    """Returns all completions of a line; the matcher filters them by the last word."""
    match = _LINE.match(line)
    if match is None:
        return []
    kind, rest = match.groups()
    if kind == "%%":
        return [*_CELL_OPTIONS, "sql"]
    from nosync.commands.dispatch import COMMANDS, options_of

    words = rest.split(" ")
    if len(words) < 2:
        return list(COMMANDS)
    session = notebook.opened
    names = [] if session is None else [*session.stages, *session.inputs]
    return [*_branches(notebook, words, names), *names, *options_of(words[0])]


def _branches(notebook: Notebook, words: list[str], stages: list[str]) -> list[str]:
    """Returns the branches, if a command takes one; for `compare`, as `branch/stage`."""
    from nosync_nb.log_folders import LogFolder

    command, before = words[0], words[-2]
    if notebook.main is None or not (
        command in ("switch", "compare") or (command == "branch" and before == "--drop")
    ):
        return []
    names = LogFolder(notebook.main).branches
    if command != "compare":
        return names
    return [f"{branch}/{stage}" for branch in ("main", *names) for stage in stages]


def _matcher(notebook: Notebook) -> Any:
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher()
    def nosync_matcher(context: Any) -> Any:
        sql = sql_before_cursor(context.full_text, _cursor(context))
        if sql is not None:
            found = complete_sql(*sql, *_sql_names(notebook))
            return {
                "completions": [
                    SimpleCompletion(each.text, type=each.kind) for each in found.items
                ],
                "matched_fragment": found.fragment,
                "suppress": True,
                "ordered": True,  # columns before functions and keywords
            }
        line = context.full_text[: _cursor(context)].rsplit("\n", 1)[-1]
        token = line.rsplit(" ", 1)[-1] if " " in line else ""
        words = [word for word in candidates(notebook, line) if word.startswith(token)]
        is_command = _LINE.match(line) is not None
        return {
            "completions": [SimpleCompletion(word, type="magic") for word in words],
            "matched_fragment": token,
            "suppress": is_command,
            "ordered": True,  # keeps stages before options; sorting would put options first
        }

    return nosync_matcher


def _sql_names(notebook: Notebook) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Returns the columns of all tables by name, and the names of functions."""
    session = notebook.opened
    if session is None or session.closed:
        return {}, ()
    from nosync_nb.frontend import sql_functions

    return session.info.sql_tables(), sql_functions()


def _cursor(context: Any) -> int:
    """Returns the offset of the cursor in the whole text."""
    lines = context.full_text.split("\n")
    before = sum(len(line) + 1 for line in lines[: context.cursor_line])
    position: int = before + context.cursor_position
    return position
