"""Runs a `%%dd` cell: first its body, as an ordinary cell, then the definitions of its stages.

The body is IPython code in the user's namespace. Line numbers in tracebacks count the magic as line
1, so they are those of the cell that the user sees. If the body raises, its names get their
previous values back. The collections that the body binds to names become stages: all or none.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from IPython.display import display

from nosync.cells.spark_equivalents import frame_note, frames_among, without_spark
from nosync.cells.tracebacks import BODY, Place
from nosync_widgets import formats
from nosync_widgets.tables import Table

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nosync.notebook import Notebook
    from nosync_nb import Collection
    from nosync_nb.frontend import StageReport

_MISSING = object()
_END = " \t \n"
"""Invisible text that is appended to the cached source of a body.

IPython names code by its text. Without this suffix, a body would get the name under which IPython
caches the call of the magic."""

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def define_cell(notebook: Notebook, line: str, source: str, options: dict[str, Any]) -> Any:
    """Runs a `%%dd` cell and returns the value of its last expression, if it has one.

    Args:
        line: the options as they were typed, for tracebacks.
        source: the body of the cell.
        options: the keyword arguments for `Session.define`.

    Raises:
        Exception: the error of the body or of a definition. The names of the body have their
            previous values, and no stage has changed.
    """
    __tracebackhide__ = True
    shell = notebook.shell
    notebook.reopen()
    notebook.errors.install()
    body = Body(shell, line, source, number=notebook.cells.number)
    with body.restoring():
        try:
            value = body.run()
        except Exception as error:
            ours = without_spark(error)
            if ours is None:
                raise
            raise ours.with_traceback(error.__traceback__) from error
        named, aliases = _split_names(notebook, body.names)
        frames = _report_frames(notebook, body.names, source)
        if not named and not aliases:
            if not frames:
                notebook.say(
                    "NoSync: no stage: no top-level name of this cell was bound to a collection"
                )
            _report_hidden(notebook, body.names)
            return value
        session = notebook.session()
        try:
            reports = session.define(named, **options) if named else []
        except Exception as error:
            place = body.bound(error, named)
            if place is not None:
                notebook.errors.blame(error, place)
            raise
        notebook.cells.defined(reports)
    for name, collection in named.items():
        notebook.variables.set(name, session[name], over=True)
        if value is collection:
            value = session[name]
    _report_hidden(notebook, body.names)
    show_reports(notebook, reports, aliases)
    return value


class Body:
    """The compiled body of one cell; `names` are the names that it binds at its top level.

    Args:
        shell: the shell that compiles and runs the code.
        line: the options after `%%dd`, for the source shown in tracebacks.
        source: the cell without its first line.
        number: the cell's execution count.
    """

    def __init__(self, shell: InteractiveShell, line: str, source: str, *, number: int) -> None:
        self._shell = shell
        code = shell.transform_cell(source)
        shown = f"%%dd {line}".rstrip() + "\n" + code.rstrip("\n") + _END
        file = shell.compile.cache(shown, number)
        try:
            self._parts = list(self._compiled(code, file))
        except SyntaxError as error:
            setattr(error, BODY, True)
            raise
        self.names = list(dict.fromkeys(n for part in self._parts for n in bound_names(part)))
        self._completed = False

    def _compiled(self, code: str, file: str) -> Iterator[CodeType]:
        """Compiles the statements and, separately, the expression at their end."""
        shell = self._shell
        tree = shell.transform_ast(shell.compile.ast_parse("\n" + code, filename=file))
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        yield shell.compile(tree, file, "exec")
        if isinstance(last, ast.Expr):
            value: Any = ast.Expression(last.value)
            yield shell.compile(value, file, "eval")

    def run(self) -> Any:
        """Runs the body; returns the value of the expression at its end, None without one."""
        __tracebackhide__ = True
        value = None
        for part in self._parts:
            value = eval(part, self._shell.user_global_ns, self._shell.user_ns)
        self._completed = True
        return value

    def bound(self, error: Exception, named: Iterable[str]) -> Place | None:
        """Returns the last line that binds the stage in which an error occurred; None if unknown.

        Args:
            named: the names of the stages; the message of the error may contain one of them.
        """
        stage = getattr(error, "stage", None)
        if stage is None:
            stage = next((name for name in named if f"stage '{name}'" in str(error)), None)
        place = None
        for part in self._parts:
            at = None
            for step in dis.get_instructions(part):
                at = (step.positions and step.positions.lineno) or at
                if step.opname in ("STORE_NAME", "STORE_GLOBAL") and step.argval == stage and at:
                    place = Place(part.co_filename, at)
        return place

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Restores the previous values of the body's names if the block raises.

        An error in the body gets a note that lists the names whose values were restored.
        """
        __tracebackhide__ = True
        names = self._shell.user_ns
        before = {name: names.get(name, _MISSING) for name in self.names}
        try:
            yield
        except BaseException as error:
            undone = [n for n in self.names if names.get(n, _MISSING) is not before[n]]
            if undone and not self._completed:
                have = (
                    "has its previous value" if len(undone) == 1 else "have their previous values"
                )
                error.add_note(f"The cell defines no stage; {formats.listing(undone)} {have}")
            for name, value in before.items():
                if value is _MISSING:
                    names.pop(name, None)
                else:
                    names[name] = value
            raise


def bound_names(code: CodeType) -> Iterator[str]:
    """Yields the global names that a module or expression binds, in the order of its code.

    Names that functions and classes bind are local to them. In a comprehension, only the walrus
    operator binds a global name.
    """
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            yield step.argval
        elif isinstance(step.argval, CodeType) and step.argval.co_name in _COMPREHENSIONS:
            yield from bound_names(step.argval)


def _report_frames(notebook: Notebook, names: Sequence[str], source: str) -> list[str]:
    """Returns the names of the body that are Spark DataFrames, and shows a note on each."""
    from nosync_nb import Collection

    values, session = notebook.shell.user_ns, notebook.opened

    def python_text(name: str) -> str | None:
        collections = {} if session is None else {**session.inputs, **session.stages}
        match = next((each for each in collections if each.lower() == name.lower()), None)
        if match is None:
            return None
        bound = isinstance(values.get(match), Collection) and match.isidentifier()
        return match if bound else f"nosync.session()[{match!r}]"

    frames = frames_among(names, values)
    for name in frames:
        notebook.say(frame_note(name, source, python_text))
    return frames


def _report_hidden(notebook: Notebook, names: Sequence[str]) -> None:
    """Reports names of inputs and stages that the body has bound to other values."""
    from nosync_nb import Collection

    session = notebook.opened
    collections = () if session is None else {**session.inputs, **session.stages}
    values = notebook.shell.user_ns
    for name in names:
        if name in collections and name in values and not isinstance(values[name], Collection):
            notebook.say(
                f"NoSync: {name} holds a value of type {type(values[name]).__name__}; the"
                f" collection still exists: {name} = nosync.session()[{name!r}]"
            )


def _split_names(
    notebook: Notebook, names: Sequence[str]
) -> tuple[dict[str, Collection], dict[str, str | None]]:
    """Splits the body's names into definitions of stages and aliases of other collections.

    An input that is bound to its own name, `flights = nosync.input("flights", ..)`, is neither.
    """
    from nosync_nb import Collection

    inputs = () if notebook.opened is None else notebook.opened.inputs
    named: dict[str, Collection] = {}
    aliases: dict[str, str | None] = {}
    for name in names:
        value = notebook.shell.user_ns.get(name)
        if name.startswith("_") or not isinstance(value, Collection):
            continue
        registered = notebook.variables.name_of(value)
        twin = next((other for other, known in named.items() if known is value), None)
        if registered is not None and registered != name:
            aliases[name] = registered
        elif twin is not None:
            aliases[name] = twin
        elif registered is None or name not in inputs:
            named[name] = value
    return named, aliases


def show_reports(
    notebook: Notebook, reports: Sequence[StageReport], aliases: dict[str, str | None]
) -> None:
    """Shows one line per stage: rows, epoch, time, placement, durability."""
    notes = [f"{name} is another name of {known}" for name, known in aliases.items()]
    notes += [report.hint for report in reports if report.hint and report.status != "stale"]
    rows = [_line(report) for report in reports]
    if not rows:
        notebook.say("\n".join(notes))
        return
    table = Table(
        caption="",
        columns=("stage", "", "rows", "epoch", "time", "ran", "durability"),
        rows=rows,
        types=("string", "string", "bigint", "bigint", "bigint", "string", "string"),
        notes=notes,
        marks=[f"{each.name}: {each.hint}" for each in reports if each.status == "stale"],
    )
    notebook.say(table.text(), table.html())
    if notebook.settings.show == "rows":
        for report in reports:
            display(notebook.session()[report.name])


def _line(report: StageReport) -> list[str]:
    status = report.status
    if status == "changed":
        status = f"changed, version {report.version}"
    time = "" if report.status == "unchanged" else formats.seconds(report.seconds)
    return [
        report.name,
        status,
        f"{report.rows:,}",
        str(report.epoch),
        time,
        report.placement,
        report.durability,
    ]
