"""Runs the body of a `%%dd` cell as if it were the cell.

The body is IPython code in the user's namespace; line 1 of the cell is the magic, so the lines of
tracebacks are those the reader sees. If it raises, the names it binds are what they were before.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from nosync.cells.tracebacks import BODY, Place
from nosync_widgets import formats

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_MISSING = object()
_END = " \t \n"
"""Ends what is kept as a body's source, which nobody sees: IPython names code by its text, and of a
cell of the same text it keeps the call of the magic."""

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Body:
    """The compiled body of one cell; `names` are those that it binds at its top level.

    Args:
        shell: the InteractiveShell.
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
        self._ran = False

    def _compiled(self, code: str, file: str) -> Iterator[CodeType]:
        """The statements, and apart from them the expression at their end."""
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
        """Runs the statements; returns the value of a last expression, else None."""
        __tracebackhide__ = True
        value = None
        for part in self._parts:
            value = eval(part, self._shell.user_global_ns, self._shell.user_ns)
        self._ran = True
        return value

    def bound(self, error: Exception, named: Iterable[str]) -> Place | None:
        """Where the name of the stage that an error tells of, one of `named`, was bound last."""
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
        """Gives the body's names their old values back if the block raises.

        An error that the body raised half-way has a note that tells which names had new ones.
        """
        __tracebackhide__ = True
        names = self._shell.user_ns
        before = {name: names.get(name, _MISSING) for name in self.names}
        try:
            yield
        except BaseException as error:
            undone = [n for n in self.names if names.get(n, _MISSING) is not before[n]]
            if undone and not self._ran:
                are = "is as it was" if len(undone) == 1 else "are as they were"
                error.add_note(
                    f"The cell defines no stage; {formats.listing(undone)} {are} before it"
                )
            for name, value in before.items():
                if value is _MISSING:
                    names.pop(name, None)
                else:
                    names[name] = value
            raise


def bound_names(code: CodeType) -> Iterator[str]:
    """Names that a module or expression stores as its own, as its code has them in order.

    Functions, classes and comprehensions are code of their own and keep their names to themselves,
    but for the walrus in a comprehension.
    """
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            yield step.argval
        elif isinstance(step.argval, CodeType) and step.argval.co_name in _COMPREHENSIONS:
            yield from bound_names(step.argval)
