"""Shows errors briefly: what failed, the remedy, and the line of the cell as it was written.

An error of NoSync is shown in a few lines. For an error of the user's own code, the frames of
NoSync and of the magic are omitted. An interrupt of NoSync shows only the current line of the cell.
`_render_traceback_` is bound to the error only while it is displayed. So errors stay picklable, and
`%tb` and `%config NoSync.short_errors = False` show every frame. A `StageError` also shows the line
of the function that raised. A syntax error in a `%%dd` body shows its line and no frame of NoSync,
as IPython does for a cell.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from nosync.cells.spark_equivalents import trace_steps, without_spark
from nosync_widgets import formats

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nosync.settings import Settings

BODY = "_nosync_body"
"""The attribute that marks a `SyntaxError` in the body of a cell, not in code that it ran."""

_OURS = ("nosync", "nosync_nb", "nosync_widgets")
_SPARKS = ("py4j", "pyspark")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_CALL = re.compile(r"(\w+)\.(\w+)\(\) ")
_WHATEVER = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_SQL = re.compile(r": %?%dd sql\b")
_MAGIC = "get_ipython().run_"
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"


class Place(NamedTuple):
    """A line of code: the name of its file or cell, and its number."""

    file: str
    line: int


class ShortErrors:
    """Replaces the display of errors in one shell.

    Args:
        names: returns the names of the log's inputs and stages.
    """

    def __init__(
        self, shell: InteractiveShell, settings: Settings, names: Callable[[], Iterable[str]]
    ) -> None:
        self._shell = shell
        self._settings = settings
        self._names = names
        self._blamed: tuple[BaseException, Place] | None = None
        self._installed = False

    def install(self) -> None:
        """Installs the handler, unless another extension uses IPython's only slot for one."""
        if self._installed or self._shell.custom_exceptions:
            return
        self._shell.set_custom_exc((Exception, KeyboardInterrupt), self._display)
        self._installed = True

    def remove(self) -> None:
        """Removes the handler."""
        if self._installed:
            self._shell.set_custom_exc((), None)
            self._installed = False

    def blame(self, error: BaseException, place: Place) -> None:
        """Records the line of a cell that caused an error, because no frame of the error has it."""
        self._blamed = error, place

    def display_error(self, error: BaseException) -> None:
        """Displays an error that no cell raised, such as one of recovery."""
        self._display(self._shell, type(error), error, error.__traceback__)

    def _display(
        self,
        shell: InteractiveShell,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
        tb_offset: int | None = None,
    ) -> None:
        if isinstance(error, SyntaxError):
            if getattr(error, BODY, False):
                shell.showsyntaxerror()
            else:
                shell.showtraceback((kind, error, trace), running_compiled_code=True)
            return
        drawn = self._renderer(shell, error, trace, tb_offset)
        if drawn is None:
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
            return
        error._render_traceback_ = drawn  # type: ignore[attr-defined]
        try:
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
        finally:
            del error._render_traceback_  # type: ignore[attr-defined]

    def _renderer(
        self,
        shell: InteractiveShell,
        error: BaseException,
        trace: TracebackType | None,
        tb_offset: int | None,
    ) -> Callable[[], list[str]] | None:
        """Returns the function that renders an error briefly; None if IPython shows it as usual."""
        if not self._settings.short_errors:
            return None
        ours = without_spark(error)
        if ours is not None:
            return partial(render, shell, ours, trace)
        if hasattr(error, "kind") and any(
            _is_our_module(each.__module__) for each in type(error).__mro__
        ):
            (about, place), self._blamed = self._blamed or (None, None), None
            place = place if about is error else None
            return partial(render, shell, error, trace, place)
        if isinstance(error, TypeError) and (form := _signature_hint(shell, error, trace)):
            return partial(_render_misuse, shell, error, trace, form)
        hidden = self._hidden_name_hint(error)
        if not hidden and not any(map(_is_our_frame, trace_steps(trace))):
            return None
        if isinstance(error, KeyboardInterrupt):
            return partial(_render_interrupt, shell, trace)
        return partial(_render_user_frames, shell, error, trace, tb_offset, hidden)

    def _hidden_name_hint(self, error: BaseException) -> str:
        """Returns a hint if a value hides a collection of the same name; else an empty text."""
        if not isinstance(error, AttributeError) or error.obj is None:
            return ""
        values = self._shell.user_ns
        name = next((n for n in self._names() if values.get(n) is error.obj), None)
        kind = type(error.obj).__name__
        back = f"the collection still exists: {name} = nosync.session()[{name!r}]"
        return f"Hint: {name} holds a value of type {kind}; {back}" if name else ""


def render(
    shell: InteractiveShell,
    error: BaseException,
    trace: TracebackType | None,
    place: Place | None = None,
) -> list[str]:
    """Renders a NoSync error: name and message, notes, the line of the cell, and the user's error.

    A cause from Spark is omitted: the message of the NoSync error quotes it, and the full error has
    hundreds of Java frames.
    """
    lines = [f"{_RED}{type(error).__name__}{_PLAIN}: {formats.visible(str(error))}"]
    lines += map(formats.visible, getattr(error, "__notes__", ()))
    where = list(_cell_lines(shell, trace) if place is None else _cell_line(shell, place))[-1:]
    if getattr(error, "span", None) is None or not any(map(_SQL.search, where)):
        lines += where  # else the message has the line of the cell, with a caret
    cause = error.__cause__
    if cause is not None and getattr(error, "kind", "") == "stage" and not _is_from_spark(cause):
        cause_text = formats.visible(str(cause))
        lines.append(f"caused by {_RED}{type(cause).__name__}{_PLAIN}: {cause_text}")
        lines += list(_cell_lines(shell, cause.__traceback__))[-1:]
    return lines


def _render_misuse(
    shell: InteractiveShell, error: BaseException, trace: TracebackType | None, form: str
) -> list[str]:
    """Renders the error of a call that passes wrong arguments to a method of NoSync."""
    where = list(_cell_lines(shell, trace))[-1:]
    return [f"{_RED}TypeError{_PLAIN}: {formats.visible(str(error))}", f"Hint: {form}", *where]


def _signature_hint(shell: InteractiveShell, error: TypeError, trace: TracebackType | None) -> str:
    """Returns signature and summary of a method of NoSync that was called with wrong arguments.

    Returns an empty text for any other error.
    """
    import nosync_nb
    from nosync_nb.frontend import Grouped

    call = _CALL.match(str(error))
    steps = [step for step in trace_steps(trace) if not _is_wrapper(step)]
    if call is None or any(map(_is_our_frame, steps[-1:])):
        return ""
    if not _is_our_module(getattr(shell.user_ns.get(call[1]), "__module__", "nosync_nb")):
        return ""  # it is a class of the user
    public = (Grouped, *(getattr(nosync_nb, name) for name in nosync_nb.__all__))
    classes = {base for each in public if isinstance(each, type) for base in each.__mro__}
    kind = next((each for each in classes if each.__name__ == call[1]), None)
    method = getattr(kind, call[2], None)
    if kind is None or method is None or not _is_our_module(kind.__module__):
        return ""
    signature = inspect.signature(method)
    parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()][1:]
    plain = signature.replace(parameters=parameters, return_annotation=signature.empty)
    summary = (inspect.getdoc(method) or "").partition("\n")[0]
    return f"{call[2]}{plain}: {summary}"


def _render_interrupt(shell: InteractiveShell, trace: TracebackType | None) -> list[str]:
    """Renders an interrupt of NoSync's code, with the current line of the cell."""
    where = "".join(list(_cell_lines(shell, trace))[-1:])
    return [f"{_RED}KeyboardInterrupt{_PLAIN}{where}"]


def _render_user_frames(
    shell: InteractiveShell,
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None,
    hint: str,
) -> list[str]:
    """Renders an error as IPython does, but without NoSync's frames, and appends the hint."""
    user_trace = None
    for step in reversed(list(_user_frames(trace))):
        user_trace = TracebackType(user_trace, step.tb_frame, step.tb_lasti, step.tb_lineno)
    drawn = shell.InteractiveTB.structured_traceback(
        type(error), error, user_trace, tb_offset=tb_offset
    )
    return [*drawn, formats.visible(hint)] if hint else drawn


def _user_frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    """Yields all frames except those of NoSync, of magics, and of libraries that NoSync called."""
    within = False
    for step in trace_steps(trace):
        if _is_our_frame(step):
            within = True
        elif not _is_magic(step) and not (within and _is_library(step)):
            within = False
            yield step


def _is_our_module(module: str) -> bool:
    return module.partition(".")[0] in _OURS


def _is_from_spark(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _SPARKS


def _is_our_frame(step: TracebackType) -> bool:
    return _is_our_module(str(step.tb_frame.f_globals.get("__name__", "")))


def _is_wrapper(step: TracebackType) -> bool:
    """Returns True if a frame's function accepts any arguments, as a wrapper does."""
    return step.tb_frame.f_code.co_flags & _WHATEVER == _WHATEVER


def _is_library(step: TracebackType) -> bool:
    """Returns True if a frame belongs to an installed module or to Python itself."""
    return step.tb_frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))


def _is_magic(step: TracebackType) -> bool:
    """Returns True if a frame is hidden from tracebacks, or if its line is the call of a magic."""
    frame = step.tb_frame
    if "__tracebackhide__" in frame.f_locals and step.tb_next is not None:
        return frame.f_locals["__tracebackhide__"] is True
    return _source(Place(frame.f_code.co_filename, step.tb_lineno)).startswith(_MAGIC)


def _cell_lines(shell: InteractiveShell, trace: TracebackType | None) -> Iterator[str]:
    """Yields the line of every frame that is code of a cell, outermost first."""
    for step in trace_steps(trace):
        yield from _cell_line(shell, Place(step.tb_frame.f_code.co_filename, step.tb_lineno))


def _cell_line(shell: InteractiveShell, place: Place) -> Iterator[str]:
    named = shell.compile.format_code_name(place.file)
    if named is not None:
        where = f"  {named[0]} {named[1]}, line {place.line}: {_as_written(_source(place))}"
        yield formats.visible(where)


def _source(place: Place) -> str:
    return linecache.getline(place.file, place.line).strip()


def _as_written(source: str) -> str:
    """Returns a line of a cell as the user wrote it, before IPython turned a magic into a call."""
    start = source.find(_MAGIC)
    if start < 0:
        return source
    try:
        call = ast.parse(source[start:], mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        words = [ast.literal_eval(each) for each in call.args[:2]]
    except (SyntaxError, ValueError, AssertionError):
        return source
    sign = "%%" if call.func.attr == "run_cell_magic" else "%"
    return source[:start] + f"{sign}{' '.join(words)}".rstrip()
